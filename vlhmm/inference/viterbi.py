"""The most likely state path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.ops.max_product import max_product, trace
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

    Forward once for the scores between windows, then each window but the last again, last first, for the way back through
    it: a long text needs memory for one window only.
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
        factors = window_factors(tables, part, carried)
        gains, log_best[rows], way = max_product(factors, keep_way=len(entering) == len(parts))
        raise_impossible(gains, first, rows, "viterbi")
        total[rows] += gains.double().sum(1)
        token[rows] = part.last_tokens()
    slots = torch.full((size, num_positions), -1, device=batch.tokens.device)
    slot = log_best.argmax(1)
    for (first, rows, part), carried in zip(reversed(parts), reversed(entering), strict=True):
        if way is None:
            factors = window_factors(tables, part, carried)
            _, _, way = max_product(factors, keep_way=True)
        assert way is not None
        slots[rows, first : first + part.num_positions], slot[rows] = trace(factors, way, slot[rows])
        way = None
    states = tables.support.states_of(batch.tokens).gather(2, slots.clamp(min=0)[..., None])[..., 0]
    return Paths(torch.where(slots >= 0, states, -1)[:, None], total.to(tables.dtype)[:, None])
