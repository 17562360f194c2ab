"""The transition as a choice of the target block, then of a state within it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.factored_tiles import factored_tiles
from vlhmm.support import Support


@dataclass(frozen=True)
class BlockFactoredTransition:
    """log A[z, z'] = log p(m' | z) + out_z . in_z' - LSE over the states of block m', where m' is the block of z'.

    Exact and normalised without a sum over all pairs of states. Needs a partition.
    """

    log_block: Float[Tensor, "Z M"]
    out: Float[Tensor, "Z H"]
    into: Float[Tensor, "Y H"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        logits = (self.out[states] @ self.into.T).view(states.shape[0], self.log_block.shape[1], -1)
        return (self.log_block[states][:, :, None] + logits.log_softmax(dim=2)).flatten(1)

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        # (M, K, M'): for each tile the source block's K states against one target block.
        log_block = source.blocks(self.log_block)[source_groups, :, target_groups]
        blocks = source.blocks(self.out), target.blocks(self.into)
        return factored_tiles(*blocks, log_block, source_groups, target_groups, normalised=True)
