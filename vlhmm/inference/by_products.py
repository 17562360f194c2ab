"""Windows of a dense HMM whose transition multiplies messages cheaper than its table would."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from vlhmm.inference.gather import Batch, Boundary, Starts, window_emission, window_factors, window_starts
from vlhmm.ops.message_recursion import message_recursion
from vlhmm.ops.recursion import Watched, recursion
from vlhmm.records import convert
from vlhmm.tables import AnyTables, Belief
from vlhmm.transitions import Transition


def by_products(tables: AnyTables) -> bool:
    return tables.support.dense and tables.transition.by_products


def product_window(tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None) -> Watched:
    """log p(x_t | x_<t) and the last log message; sequences with underflow, which are reported, are recomputed by tiles in float64."""
    log_emission = window_emission(tables, batch)
    starts = window_starts(tables, batch, belief)
    if belief is not None and boundary is not None:
        starts = _entered(starts, belief, boundary)
    run = message_recursion(
        tables.transition.pusher(),
        starts.log_previous,
        starts.log_inits,
        starts.init_of,
        log_emission,
        batch.lengths,
        least_move=_least_move(tables.transition, possible=False),
        least_possible_move=_least_move(tables.transition, possible=True),
    )
    rows = run.underflow.nonzero()[:, 0]
    if not rows.numel():
        return run
    factors = window_factors(tables, batch, belief, boundary, log_emission).sequences(rows)
    again = recursion(convert(factors, dtype=torch.float64), "highest")
    dtype = run.token_log_probs.dtype
    return (
        run.token_log_probs.index_copy(0, rows, again[0].to(dtype)),
        run.log_last.index_copy(0, rows, again[1].to(dtype)),
        run.underflow,
    )


def _entered(starts: Starts, belief: Belief, boundary: Boundary) -> Starts:
    """Position 0 started from the predicted states, belief times boundary: sequence b has the b-th K rows of the boundary."""
    size, states = belief.log_probs.shape
    parts = boundary.transition.split_rows([states] * size)
    entered = torch.cat([part.pusher()(probs[None]) for part, probs in zip(parts, belief.probs, strict=True)])
    own = starts.log_inits.shape[0] + torch.arange(size, device=starts.init_of.device)
    init_of = starts.init_of.clone()
    # After a reset token the belief is dropped.
    init_of[:, 0] = torch.where(init_of[:, 0] < 0, own, init_of[:, 0])
    log_entered = torch.where(entered > 0, entered.clamp(min=torch.finfo(entered.dtype).tiny).log(), -torch.inf)
    return replace(starts, log_inits=torch.cat([starts.log_inits, log_entered]), init_of=init_of)


def _least_move(transition: Transition, *, possible: bool) -> float:
    """A lower bound on transition probabilities: the product of the smallest (possible) entries of the factors."""
    least = 1.0
    for _, log_probs in transition.distributions():
        smallest = log_probs.detach()
        if possible:
            smallest = torch.where(smallest == -torch.inf, 0.0, smallest)
        least *= math.exp(float(smallest.amin()))
    return least
