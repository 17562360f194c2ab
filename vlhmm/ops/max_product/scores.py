"""Max-product on a CPU: the forward pass keeps scores, and the backtrace finds each predecessor from them.

Only one state a position is on the path, so its predecessor is sought when the path is known: the forward pass takes
the maximum alone, which runs over adjacent numbers many times as fast as a maximum with its index.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors
from vlhmm.pauses import pause

STEP_BYTES = 1 << 21
"""Scores of pairs of states made at a time: small enough to stay near the processor (measured on two CPU cores)."""


@dataclass(frozen=True)
class ScoresBefore:
    """What the backtrace needs in place of back-pointers."""

    log_before: Float[Tensor, "B T K"]
    """The best score of a path into each state of the position before, relative to the best of them."""
    log_tiles_into: Float[Tensor, "U K K"]
    """log A[z, z'] at [z', z]: what leads into one state lies side by side."""


def max_product(
    factors: Factors, keep_backtrace: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], ScoresBefore | None]:
    """As the reference, with scores in place of back-pointers."""
    log_tiles_into = factors.log_tiles.mT.contiguous()
    begun = factors.init_of >= 0
    any_begun, all_begun = begun.any(0).tolist(), begun.all(0).tolist()
    # All sequences share the one tile (broadcast): it is not copied for each.
    one_tile = factors.log_tiles.shape[0] == 1
    shortest = int(factors.lengths.min())
    log_best = factors.log_previous - factors.log_previous.amax(1, keepdim=True)
    log_best = torch.where(log_best.isnan(), -torch.inf, log_best)
    gains = torch.empty_like(factors.log_emission[:, :, 0])
    log_before = torch.empty_like(factors.log_emission) if keep_backtrace else None
    lowest = torch.finfo(gains.dtype).min
    for t in range(factors.num_positions):
        pause()
        if log_before is not None:
            log_before[:, t] = log_best
        score = log_best
        if not all_begun[t]:
            if one_tile:
                score = _best_move(log_best, log_tiles_into[0])
            else:
                score = _best_own_move(log_best, log_tiles_into, factors.tile_of[:, t])
        if any_begun[t]:
            # A sequence of probability zero stays impossible, also after a restart from an initial row.
            alive = factors.begins_alive() & (gains[:, :t] > -torch.inf).all(1)
            begins = factors.log_inits[factors.init_of[:, t].clamp(min=0)]
            score = torch.where(begun[:, t, None], begins.masked_fill(~alive[:, None], -torch.inf), score)
        score = score + factors.log_emission[:, t]
        gain = score.amax(1, keepdim=True)
        # Of an impossible text all scores stay -inf.
        score.sub_(gain.clamp(min=lowest))
        if t >= shortest:
            within = (t < factors.lengths)[:, None]
            score = torch.where(within, score, log_best)
            gain = torch.where(within, gain, 0.0)
        log_best = score
        gains[:, t] = gain[:, 0]
    return gains, log_best, None if log_before is None else ScoresBefore(log_before, log_tiles_into)


def _best_move(log_best: Float[Tensor, "B K"], log_tile_into: Float[Tensor, "K K"]) -> Float[Tensor, "B K"]:
    """max over z of log_best(z) + log A[z, z'], the tile a few rows at a time for all sequences."""
    size, states = log_best.shape
    best = torch.empty_like(log_best)
    at_once = max(1, STEP_BYTES // (size * states * log_best.element_size()))
    pairs = log_best.new_empty(size, min(at_once, states), states)
    for rows, found in zip(log_tile_into.split(at_once), best.split(at_once, dim=1), strict=True):
        some = torch.add(rows, log_best[:, None], out=pairs[:, : rows.shape[0]])
        torch.amax(some, dim=2, out=found)
    return best


def _best_own_move(
    log_best: Float[Tensor, "B K"], log_tiles_into: Float[Tensor, "U K K"], tile_of: Int[Tensor, " B"]
) -> Float[Tensor, "B K"]:
    """The same with a tile for each sequence, a few sequences at a time."""
    size, states = log_best.shape
    best = torch.empty_like(log_best)
    at_once = max(1, STEP_BYTES // (states * states * log_best.element_size()))
    for first in range(0, size, at_once):
        some = slice(first, first + at_once)
        torch.amax(log_tiles_into[tile_of[some]] + log_best[some, None], dim=2, out=best[some])
    return best


def trace(
    factors: Factors, backtrace: ScoresBefore, last_slot: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The best path that ends in `last_slot`, -1 past the length, and its slot before position 0."""
    here, within, begun = last_slot, factors.within(), factors.init_of >= 0
    any_begun, shortest = begun.any(0).tolist(), int(factors.lengths.min())
    slots = torch.empty_like(factors.tile_of)
    for t in range(factors.num_positions - 1, -1, -1):
        pause()
        slots[:, t] = here
        if backtrace.log_tiles_into.shape[0] == 1:
            log_into = backtrace.log_tiles_into[0].index_select(0, here)
        else:
            log_into = backtrace.log_tiles_into[factors.tile_of[:, t], here]
        scores = backtrace.log_before[:, t] + log_into
        if any_begun[t]:
            scores = torch.where(begun[:, t, None], backtrace.log_before[:, t], scores)
        before = scores.argmax(1)
        here = torch.where(within[:, t], before, here) if t >= shortest else before
    return torch.where(within, slots, -1), here
