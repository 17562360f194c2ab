"""The transition as a choice of the target block, then of a state within it, both softmaxes of the source state's features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.transition_tiles import TransitionOperands
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.transitions.block_factored import BlockFactoredTransition
from vlhmm.transitions.rows import joined, push_by_rows


@dataclass(frozen=True)
class BlockSoftmaxTransition:
    """A `BlockFactoredTransition` with p(m' | z) left in factors, the softmax over blocks of out_z . block_weight_m' + block_bias_m'.

    A window reads p(m' | z) at few pairs of a state and a block: kernels make these alone, and the normaliser of each state.

    Example:
        >>> from vlhmm.transitions import BlockSoftmaxTransition
        >>> transition = BlockSoftmaxTransition(torch.ones(2, 1), torch.ones(2, 1), torch.zeros(2, 1), torch.zeros(2))
        >>> transition.log_rows(torch.tensor([0])).exp()
        tensor([[0.5000, 0.5000]])
    """

    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""
    block_weight: Float[Tensor, "M H"]
    """Features of the target blocks."""
    block_bias: Float[Tensor, " M"]

    __repr__ = shown

    by_products = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.out.shape[0], self.into.shape[0]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        rows = self._made(self.out[states])
        return rows.log_rows(torch.arange(states.shape[0], device=states.device))

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        return self.operands().log_tiles(source, source_groups, target, target_groups)

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        rows = self._made(self.out.index_select(0, source))
        return rows.log_pairs(torch.arange(source.shape[0], device=source.device), target)

    def pusher(self) -> Callable[[Tensor], Tensor]:
        return partial(push_by_rows, self.log_rows, self.shape[1])

    def split_rows(self, sizes: Sequence[int]) -> list[BlockSoftmaxTransition]:
        others = (self.into, self.block_weight, self.block_bias)
        return [BlockSoftmaxTransition(out, *others) for out in self.out.split(list(sizes))]

    def join_rows(self, other: BlockSoftmaxTransition) -> BlockSoftmaxTransition:
        return BlockSoftmaxTransition(joined(self.out, other.out), self.into, self.block_weight, self.block_bias)

    def rounded(self) -> BlockSoftmaxTransition:
        # Both normalisers are made with what they normalise, of the same features.
        return self

    def renormalized(self) -> BlockFactoredTransition:
        return self._made(self.out)

    def operands(self) -> TransitionOperands:
        weights = {"block_weight": self.block_weight, "block_bias": self.block_bias}
        return TransitionOperands(self.out, self.into, None, per_block=True, **weights)

    def check_support(self, support: Support) -> None:
        self.renormalized().check_support(support)

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        return self.renormalized().distributions()

    def _made(self, out: Float[Tensor, "N H"]) -> BlockFactoredTransition:
        """Of the source states with these features."""
        log_block = torch.addmm(self.block_bias, out, self.block_weight.T).log_softmax(dim=1)
        return BlockFactoredTransition(log_block, out, self.into)
