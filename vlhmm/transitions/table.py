"""The transition stored whole, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.support import Support


@dataclass(frozen=True)
class TableTransition:
    """A transition stored as a table, log p(z' | z) = log_prob[z, z'].

    Example:
        >>> from vlhmm.tables import TableTransition
        >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
        >>> transition.log_rows(torch.tensor([1])).exp()
        tensor([[0.4000, 0.6000]])
    """

    log_prob: Float[Tensor, "Z Y"]
    """log p(z' | z), source state z in the row."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_rows(torch.tensor([0, 1])).exp()
            tensor([[0.7000, 0.3000],
                    [0.4000, 0.6000]])
        """
        return self.log_prob[states]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, K).

        Example:
            >>> from vlhmm.tables import TableTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.3000]]])
        """
        if source.partition and target.partition:
            sources, targets = source.num_groups, target.num_groups
            if sources == targets == source_groups.shape[0] == 1:
                return self.log_prob[None]
            # Rows of a tile are pieces of rows of the table; the gradient of `index_select` sorts nothing.
            states = torch.arange(source.states_per_word, device=source_groups.device)
            pieces = (source_groups[:, None] * source.states_per_word + states) * targets + target_groups[:, None]
            width = self.log_prob.shape[1] // targets
            return self.log_prob.reshape(-1, width).index_select(0, pieces.flatten()).view(*pieces.shape, width)
        from_states = source.states_of_group[source_groups]
        to_states = target.states_of_group[target_groups]
        return self.log_prob[from_states[:, :, None], to_states[:, None, :]]
