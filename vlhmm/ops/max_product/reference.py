"""The max-product recursion with back-pointers: the specification."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors


def max_product(
    factors: Factors, back_pointers: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], Int[Tensor, "B T K"]]:
    """The gain at each position of the best score, the last scores (their best is 0), and each slot's best predecessor.

    Scores are relative to the best one, so that the millionth position is as exact as the first; the gains sum to the best
    path's log-probability. Of equal predecessors the first one counts.
    """
    log_best = factors.log_previous - factors.log_previous.amax(1, keepdim=True)
    alive = factors.begins_alive()
    gains, pointers = [], []
    for t in range(factors.num_positions):
        begun = (factors.init_of[:, t] >= 0)[:, None]
        moved, from_slot = (log_best[:, :, None] + factors.log_tiles[factors.tile_of[:, t]]).max(1)
        begins = factors.log_inits[factors.init_of[:, t].clamp(min=0)]
        score = torch.where(begun, begins, moved) + factors.log_emission[:, t]
        score = torch.where(alive[:, None], score, -torch.inf)
        gain = score.amax(1)
        within = t < factors.lengths
        possible = gain > -torch.inf
        following = score - torch.where(possible, gain, 0.0)[:, None]
        alive = alive & (possible | ~within)
        gains.append(torch.where(within, gain, 0.0))
        pointers.append(torch.where(begun, log_best.argmax(1, keepdim=True), from_slot))
        log_best = torch.where(within[:, None], following, log_best)
    every = torch.stack(pointers, dim=1) if back_pointers else factors.tile_of.new_zeros(0, 0, 0)
    return torch.stack(gains, dim=1), log_best, every


def trace(
    factors: Factors, pointers: Int[Tensor, "B T K"], last_slot: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The best path that ends in `last_slot`, -1 past the length, and its slot before position 0."""
    here, slots = last_slot, []
    for t in range(factors.num_positions - 1, -1, -1):
        within = t < factors.lengths
        slots.append(torch.where(within, here, -1))
        here = torch.where(within, pointers[:, t].gather(1, here[:, None])[:, 0], here)
    return torch.stack(slots[::-1], dim=1), here
