"""The transition as a softmax over all states of a product of factors."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.factored_tiles import factored_tiles
from vlhmm.support import Support


@dataclass(frozen=True)
class SoftmaxTransition:
    """A softmax over all target states, log p(z' | z) = out_z . into_z' - log_normalizer_z.

    Example:
        >>> from vlhmm.tables import SoftmaxTransition
        >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
        >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.2689, 0.7311],
                [0.1192, 0.8808]])
    """

    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""
    log_normalizer: Float[Tensor, " Z"]
    """log sum over z' of exp(out_z . into_z')."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import SoftmaxTransition
            >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
            >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
            >>> transition.log_rows(torch.tensor([1])).exp()
            tensor([[0.1192, 0.8808]])
        """
        return self.out[states] @ self.into.T - self.log_normalizer[states, None]

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
            >>> from vlhmm.tables import SoftmaxTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
            >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.7311]]])
        """
        row_term = -source.rows(self.log_normalizer, source_groups)
        if source.partition and target.partition:
            blocks = source.blocks(self.out), target.blocks(self.into)
            return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=False)
        logits = source.rows(self.out, source_groups) @ target.rows(self.into, target_groups).mT
        return logits + row_term[:, :, None]
