"""The transition as a choice of the target block, then of a state within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlhmm.ops.transition_tiles import TransitionOperands, block_factored_tiles
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.transitions.rows import ROW_BYTES, check_square, joined

TILE_BYTES = 1 << 28
"""What the target blocks of pairs of states may take at once."""
CACHED_BYTES = 1 << 23
"""Scores of pairs of states that a CPU makes at a time when it sums over sources: they stay in its cache."""


@dataclass(frozen=True)
class BlockFactoredTransition:
    """A softmax over blocks, then one within the block, p(z' | z) = p(m' | z) p(z' | m', z) for z' in block m'.

    log p(z' | m', z) = out_z . into_z' - log sum over the states z'' of block m' of exp(out_z . into_z''). It is exact and
    normalised without a sum over all pairs of states. The support must be a partition.

    Example:
        >>> from vlhmm.tables import BlockFactoredTransition
        >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]])
    """

    log_block: Float[Tensor, "Z M"]
    """log p(m' | z), the probability of each target block."""
    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""

    __repr__ = shown

    by_products = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.out.shape[0], self.into.shape[0]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        logits = (self.out[states] @ self.into.T).view(states.shape[0], self.log_block.shape[1], -1)
        return (self.log_block[states][:, :, None] + logits.log_softmax(dim=2)).flatten(1)

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        factors = (self.log_block, self.out, self.into)
        return block_factored_tiles(*factors, source, source_groups, target, target_groups)

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        num_blocks = self.log_block.shape[1]
        states_per_block = self.into.shape[0] // num_blocks
        block = target.div(states_per_block, rounding_mode="floor")
        to_block = self.log_block.flatten().index_select(0, source * num_blocks + block)
        into = self.into.view(num_blocks, -1, self.into.shape[1])
        return to_block + _log_within_block(self.out.index_select(0, source), into, target)

    def pusher(self) -> Callable[[Tensor], Tensor]:
        return self._push

    def _push(self, probs: Float[Tensor, "B Z"]) -> Float[Tensor, "B Y"]:
        """Normalised by block after the sum over sources: half the time of making rows of log-probabilities."""
        num_targets, num_blocks = self.shape[1], self.log_block.shape[1]
        pushed = probs.new_zeros(probs.shape[0], num_blocks, num_targets // num_blocks)
        most_bytes = ROW_BYTES if probs.is_cuda else CACHED_BYTES
        every_state = torch.arange(probs.shape[1], device=probs.device)
        for states in every_state.split(max(1, most_bytes // (num_targets * probs.element_size()))):
            scores = (self.out[states] @ self.into.T).view(len(states), num_blocks, -1)
            scores -= scores.detach().amax(2, keepdim=True)
            scores.exp_()
            weights = probs[:, states, None] * (self.log_block[states].exp() / scores.sum(2))
            pushed = pushed + torch.einsum("bnm,nmk->bmk", weights, scores)
        return pushed.flatten(1)

    def split_rows(self, sizes: Sequence[int]) -> list[BlockFactoredTransition]:
        parts = zip(self.log_block.split(list(sizes)), self.out.split(list(sizes)), strict=True)
        return [BlockFactoredTransition(log_block, out, self.into) for log_block, out in parts]

    def join_rows(self, other: BlockFactoredTransition) -> BlockFactoredTransition:
        log_block = joined(self.log_block, other.log_block)
        return BlockFactoredTransition(log_block, joined(self.out, other.out), self.into)

    def rounded(self) -> BlockFactoredTransition:
        # Its normaliser is made with its tiles, of the same features.
        return self

    def renormalized(self) -> BlockFactoredTransition:
        return self

    def operands(self) -> TransitionOperands:
        return TransitionOperands(self.out, self.into, self.log_block, per_block=True)

    def check_support(self, support: Support) -> None:
        if not support.partition:
            raise ValueError("a block-factored transition needs a partition of the states into blocks")
        if self.log_block.shape[1] != support.num_groups:
            raise ValueError(
                f"the transition has {self.log_block.shape[1]} blocks, but the support has {support.num_groups}"
            )
        check_square(self.shape, support)

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        return [("transition between blocks", self.log_block)]


def _log_within_block(
    out: Float[Tensor, "N H"], into: Float[Tensor, "M K H"], target: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """log softmax of out . in over the states of the target's block, at the target."""
    num_blocks, states_per_block, width = into.shape

    def part(out: Tensor, target: Tensor) -> Tensor:
        if num_blocks == 1:
            logits = out @ into[0].T
        else:
            tiles = into.index_select(0, target.div(states_per_block, rounding_mode="floor"))
            logits = torch.bmm(tiles, out[:, :, None])[:, :, 0]
        return logits.log_softmax(dim=1).gather(1, (target % states_per_block)[:, None])[:, 0]

    at_once = max(1, TILE_BYTES // (states_per_block * (1 if num_blocks == 1 else width) * into.element_size()))
    if out.shape[0] <= at_once:
        return part(out, target)
    # Each part's tiles are made again in the backward pass: together they may not fit.
    parts = [
        checkpoint(part, some_out, some_target, use_reentrant=False, preserve_rng_state=False)
        for some_out, some_target in zip(out.split(at_once), target.split(at_once), strict=True)
    ]
    return torch.cat(parts)
