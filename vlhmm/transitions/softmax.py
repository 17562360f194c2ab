"""The transition as a softmax over all states of a product of factors."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.factored_tiles import factored_tiles
from vlhmm.support import Support


@dataclass(frozen=True)
class SoftmaxTransition:
    """log A[z, z'] = out_z . in_z' - log_normalizer_z, the normaliser over every z'."""

    out: Float[Tensor, "Z H"]
    into: Float[Tensor, "Y H"]
    log_normalizer: Float[Tensor, " Z"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.out[states] @ self.into.T - self.log_normalizer[states, None]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        row_term = -source.rows(self.log_normalizer, source_groups)
        if source.partition and target.partition:
            blocks = source.blocks(self.out), target.blocks(self.into)
            return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=False)
        logits = source.rows(self.out, source_groups) @ target.rows(self.into, target_groups).mT
        return logits + row_term[:, :, None]
