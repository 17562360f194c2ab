"""Max-product: the best score of a path into each state, and where it came from."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors

__all__ = ["max_product"]

STEP_BYTES = 1 << 25
"""The scores of all pairs of states for a few sequences at a time: small enough to stay near the processor."""


def max_product(
    factors: Factors, back_pointers: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], Int[Tensor, "B T K"]]:
    """As the reference; back-pointers in the smallest integers that hold them."""
    size, num_positions, states = factors.log_emission.shape
    # Pointers are local to a tile, so a block of up to 32,767 states needs two bytes each.
    pointer_type = torch.int16 if states <= torch.iinfo(torch.int16).max else torch.int32
    shape = (size, num_positions, states) if back_pointers else (0, 0, 0)
    pointers = torch.empty(shape, dtype=pointer_type, device=factors.lengths.device)
    begun = factors.init_of >= 0
    any_begun, all_begun = begun.any(0).tolist(), begun.all(0).tolist()
    shortest = int(factors.lengths.min())
    log_best = factors.log_previous - factors.log_previous.amax(1, keepdim=True)
    log_best = torch.where(log_best.isnan(), -torch.inf, log_best)
    alive = factors.begins_alive()[:, None]
    gains = torch.empty_like(factors.log_emission[:, :, 0])
    for t in range(num_positions):
        if all_begun[t]:
            score, from_slot = log_best, factors.tile_of.new_zeros(size, states)
        else:
            score, from_slot = _best_move(log_best, factors.log_tiles, factors.tile_of[:, t])
        if any_begun[t]:
            begins = factors.log_inits[factors.init_of[:, t].clamp(min=0)]
            score = torch.where(begun[:, t, None], begins, score)
            from_slot = torch.where(begun[:, t, None], log_best.argmax(1, keepdim=True), from_slot)
        score = torch.where(alive, score + factors.log_emission[:, t], -torch.inf)
        gain = score.amax(1, keepdim=True)
        possible = gain > -torch.inf
        score = score - torch.where(possible, gain, 0.0)
        if t >= shortest:
            within = (t < factors.lengths)[:, None]
            score = torch.where(within, score, log_best)
            gain = torch.where(within, gain, 0.0)
            possible = possible | ~within
        log_best, alive = score, alive & possible
        gains[:, t] = gain[:, 0]
        if back_pointers:
            pointers[:, t] = from_slot
    return gains, log_best, pointers


def _best_move(
    log_best: Float[Tensor, "B K"], log_tiles: Float[Tensor, "U K K"], tile_of: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """max and argmax over z of log_best(z) + log A[z, z'], a few sequences at a time."""
    states = log_best.shape[1]
    at_once = max(1, STEP_BYTES // (states * states * log_best.element_size()))
    scores, slots = [], []
    for best, tile in zip(log_best.split(at_once), tile_of.split(at_once), strict=True):
        score, slot = (best[:, :, None] + log_tiles[tile]).max(1)
        scores.append(score)
        slots.append(slot)
    return torch.cat(scores), torch.cat(slots)
