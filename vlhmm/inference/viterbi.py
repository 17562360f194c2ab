"""The most likely state path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.ops.max_product import max_product
from vlhmm.tables import Belief, Tables


@dataclass(frozen=True)
class Paths:
    states: Int[Tensor, "B k T"]
    """The best path first; -1 past the length."""
    log_prob: Float[Tensor, "B k"]
    """log p(x, z)."""


@torch.no_grad()
def viterbi(tables: Tables, batch: Batch, window: int | None = None) -> Paths:
    """argmax over z of p(x, z), and its log-probability.

    Forward once for the scores between windows, then each window again, last first, for its back-pointers: a long text needs
    memory for one window only.
    """
    window = window or default_window(tables, batch.tokens.shape[0])
    size, num_positions = batch.tokens.shape
    parts, entering = list(windows(batch, window)), []
    log_best = tables.log_emission.new_zeros(size, tables.support.states_per_word)
    total = torch.zeros(size, dtype=torch.float64, device=tables.device)
    token = batch.tokens[:, 0].clone()
    for first, rows, part in parts:
        carried = None if first == 0 else Belief(token[rows], log_best[rows])
        entering.append(carried)
        gains, log_best[rows], _ = max_product(window_factors(tables, part, carried), back_pointers=False)
        raise_impossible(gains, first, rows, "viterbi")
        total[rows] += gains.double().sum(1)
        token[rows] = part.last_tokens()
    slots = torch.full((size, num_positions), -1, device=batch.tokens.device)
    slot = log_best.argmax(1)
    for (first, rows, part), carried in zip(reversed(parts), reversed(entering), strict=True):
        _, _, pointers = max_product(window_factors(tables, part, carried), back_pointers=True)
        here, within = slot[rows], part.within()
        for t in range(part.num_positions - 1, -1, -1):
            slots[rows, first + t] = torch.where(within[:, t], here, -1)
            before = pointers[:, t].gather(1, here[:, None])[:, 0].long()
            here = torch.where(within[:, t], before, here)
        slot[rows] = here
    states = tables.support.states_of(batch.tokens).gather(2, slots.clamp(min=0)[..., None])[..., 0]
    return Paths(torch.where(slots >= 0, states, -1)[:, None], total.to(tables.dtype)[:, None])
