"""The transition stored whole, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.support import Support


@dataclass(frozen=True)
class TableTransition:
    """log A[z, z'] stored whole."""

    log_prob: Float[Tensor, "Z Y"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.log_prob[states]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
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
