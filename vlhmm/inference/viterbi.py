"""The most likely state path."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.ops.max_product import max_product, trace
from vlhmm.ops.recursion import Factors, recursion
from vlhmm.records import convert, shown
from vlhmm.tables import Belief, Tables


@dataclass(frozen=True)
class Paths:
    """The k most likely state paths of each sequence.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> paths = hmm.viterbi([[0, 1, 2], [2, 0, 0]], lengths=[3, 2])
        >>> paths.states[:, 0]
        tensor([[ 0,  0,  1],
                [ 1,  0, -1]])
        >>> paths.log_prob
        tensor([[-4.1917],
                [-3.0366]])
    """

    states: Int[Tensor, "*B k T"]
    """State numbers, best path first; -1 past the length, and everywhere in a path that does not exist."""
    log_prob: Float[Tensor, "*B k"]
    """log p(x, z), given the text before if there was a belief; -inf where a sequence has fewer than k paths."""

    __repr__ = shown


def begun_from_past(factors: Factors) -> Factors:
    """The same factors, with the state before position 0 marginalised: it is no part of the path.

    The best path may begin in the least probable state. So this is computed in float64, with an underflow check of every state.
    """
    used, tile_of = factors.tile_of[:, :1].unique(return_inverse=True)
    first = replace(
        factors,
        init_of=factors.init_of[:, :1],
        log_tiles=factors.log_tiles[used],
        tile_of=tile_of,
        log_emission=torch.zeros_like(factors.log_emission[:, :1]),
        lengths=torch.ones_like(factors.lengths),
        same_ahead=False,
    )
    dtype = factors.log_emission.dtype
    log_total, log_state = (values.to(dtype) for values in recursion(convert(first, dtype=torch.float64)))
    init_of = factors.init_of.clone()
    # After a reset token log start is used unchanged: converted to probabilities, some entries could underflow.
    anew = (init_of[:, :1] >= 0) & (log_total > -torch.inf)
    log_begun = torch.where(anew, factors.log_inits[init_of[:, 0].clamp(min=0)], log_total + log_state)
    init_of[:, 0] = factors.log_inits.shape[0] + torch.arange(init_of.shape[0], device=init_of.device)
    return replace(factors, log_inits=torch.cat([factors.log_inits, log_begun]), init_of=init_of)


@torch.no_grad()
def viterbi(tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None) -> Paths:
    """argmax over z of p(x, z), and its log-probability.

    Forward once for the scores between windows, then each window but the last again, last first, for the backtrace through
    it: a long text needs memory for one window only.
    """
    window = window or default_window(tables, batch.tokens.shape[0])
    size, num_positions = batch.tokens.shape
    parts, entering = list(windows(batch, window)), []
    log_best = tables.log_emission.new_zeros(size, tables.support.states_per_word)
    total = torch.zeros(size, dtype=torch.float64, device=tables.device)
    token = batch.tokens[:, 0].clone()
    for first, rows, part in parts:
        carried = belief if first == 0 else Belief(token[rows], log_best[rows])
        entering.append(carried)
        factors = _factors(tables, part, carried, first)
        gains, log_best[rows], backtrace = max_product(factors, keep_backtrace=len(entering) == len(parts))
        raise_impossible(gains, first, rows, "viterbi")
        total[rows] += gains.double().sum(1)
        token[rows] = part.last_tokens()
    slots = torch.full((size, num_positions), -1, device=batch.tokens.device)
    slot = log_best.argmax(1)
    for (first, rows, part), carried in zip(reversed(parts), reversed(entering), strict=True):
        if backtrace is None:
            factors = _factors(tables, part, carried, first)
            _, _, backtrace = max_product(factors, keep_backtrace=True)
        assert backtrace is not None
        slots[rows, first : first + part.num_positions], slot[rows] = trace(factors, backtrace, slot[rows])
        backtrace = None
    states = tables.support.states_of(batch.tokens).gather(2, slots.clamp(min=0)[..., None])[..., 0]
    return Paths(torch.where(slots >= 0, states, -1)[:, None], total.to(tables.dtype)[:, None])


def _factors(tables: Tables, part: Batch, carried: Belief | None, first: int) -> Factors:
    factors = window_factors(tables, part, carried)
    return begun_from_past(factors) if first == 0 and carried is not None else factors
