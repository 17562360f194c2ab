"""Likelihood and filtering: the forward direction, window by window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlhmm.inference.blocked import blocked_window, kernels_take
from vlhmm.inference.by_products import by_products, product_window
from vlhmm.inference.gather import Batch, Boundary, default_window, window_factors, window_for, windows
from vlhmm.ops.recursion import Watched, filtered, kernels_run, watched_recursion
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.tables import AnyTables, Belief, Tables


@dataclass(frozen=True)
class Scored:
    token_log_probs: Float[Tensor, "B T"]
    """log p(x_t | x_<t), 0 past the length."""
    belief: Belief
    underflow: Bool[Tensor, " B"]
    """Sequences that were done again in a wider range; while a graph is captured, that ought to have been."""


def score(
    tables: AnyTables,
    batch: Batch,
    belief: Belief | None = None,
    boundary: Boundary | None = None,
    window: int | None = None,
) -> Scored:
    """log p(x_t | x_<t) and the belief after the last token; differentiable in the tables, with no autograd graph over time steps.

    `boundary`: the transition from the states of `belief` to those of `tables`, if they differ.
    """
    window = window or default_window(tables, batch.tokens.shape[0])
    if batch.num_positions <= window:
        token_log_probs, log_last, underflow = _window(tables, batch, belief, boundary)
        return Scored(token_log_probs, Belief(batch.last_tokens(), log_last), underflow)
    parts: list[Tensor] = []
    # Sequences end in different windows: each keeps the belief it had at its end.
    log_last = tables.log_start.new_zeros(batch.tokens.shape[0], tables.support.states_per_word)
    token, underflow = batch.tokens[:, 0], torch.zeros_like(batch.lengths, dtype=torch.bool)
    for first, rows, part in windows(batch, window):
        carried = Belief(token, log_last).of(rows) if first else belief and belief.of(rows)
        entering = boundary if first == 0 else None
        if torch.is_grad_enabled():
            log_probs, part_last, part_underflow = _checkpointed(tables, part, carried, entering)
        else:
            log_probs, part_last, part_underflow = _window(tables, part, carried, entering)
        underflow = underflow.index_copy(0, rows, underflow[rows] | part_underflow)
        whole = log_probs.new_zeros(batch.tokens.shape[0], log_probs.shape[1])
        parts.append(whole.index_copy(0, rows, log_probs))
        log_last = log_last.index_copy(0, rows, part_last)
        token = token.index_copy(0, rows, part.last_tokens())
    # `windows` stops where all sequences have ended: the rest is padded with 0.
    scored = torch.nn.functional.pad(torch.cat(parts, dim=1), (0, batch.num_positions - first - part.num_positions))
    return Scored(scored, Belief(token, log_last), underflow)


def reads_positions(support: Support, dtype: torch.dtype, batch: Batch) -> bool:
    """Whether `WindowTables` can score the batch: in one window, so that the emission rows of its tokens are computed once."""
    return support.dense and batch.num_positions <= window_for(support, dtype, batch.tokens.shape[0])


def can_be_captured(tables: AnyTables, batch: Batch) -> bool:
    """Whether a CUDA graph can hold `score`: it is then sync-free, and its shapes follow from those of the batch.

    With several windows the host reads which sequences reach each of them, which synchronises with the device.
    """
    if batch.num_positions > default_window(tables, batch.tokens.shape[0]):
        return False
    if by_products(tables):
        # It checks for underflow, which synchronises with the device.
        return False
    return kernels_take(tables) or (tables.support.dense and kernels_run(tables.dtype, tables.device))


def _window(tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None) -> Watched:
    """log p(x_t | x_<t), the last log message and which sequences underflow, of one window, by the kernels where they apply."""
    if kernels_take(tables):
        return blocked_window(tables, batch, belief, boundary)
    if by_products(tables):
        return product_window(tables, batch, belief, boundary)
    return watched_recursion(window_factors(tables, batch, belief, boundary), tables.precision)


def _checkpointed(tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None) -> Watched:
    """Activation checkpointing of one window: its factors are recomputed in the backward pass, so only beliefs of a long text are stored."""
    log_probs = None if belief is None else belief.log_probs

    def run(log_probs: Tensor | None) -> Watched:
        carried = None if belief is None or log_probs is None else Belief(belief.token, log_probs)
        return _window(tables, batch, carried, boundary)

    result: Watched = checkpoint(run, log_probs, use_reentrant=False, preserve_rng_state=False)
    return result


@dataclass(frozen=True)
class Filtered:
    """p(z_t | x_<=t) at each position, stored for the K states that can emit x_t.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> filtered = hmm.filter([[0, 1, 2]])
        >>> filtered.probs[0, -1], filtered.belief.probs[0]
        (tensor([0.2121, 0.7879]), tensor([0.2121, 0.7879]))
    """

    probs: Float[Tensor, "*B T K"]
    """p(z_t | x_<=t) over `states`, 0 past the length."""
    states: Int[Tensor, "*B T K"]
    """The states that can emit x_t."""
    belief: Belief
    """What is known after the last token: the `belief` with which a query continues the text."""

    __repr__ = shown


@torch.no_grad()
def filter_states(tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None) -> Filtered:
    """p(z_t | x_<=t) over the states that can emit x_t, at every position."""
    log_probs, last = log_filtered_states(tables, batch, belief, window)
    return Filtered(log_probs.exp_(), tables.support.states_of(batch.tokens), last)


@torch.no_grad()
def log_filtered_states(
    tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None
) -> tuple[Float[Tensor, "B T K"], Belief]:
    """log p(z_t | x_<=t) at every position, -inf past the length, and the belief after the last token."""
    window = window or default_window(tables, batch.tokens.shape[0])
    size, num_positions = batch.tokens.shape
    log_probs = tables.log_emission.new_full((size, num_positions, tables.support.states_per_word), -torch.inf)
    log_last = log_probs.new_zeros(size, tables.support.states_per_word)
    token = batch.tokens[:, 0].clone()
    for first, rows, part in windows(batch, window):
        carried = Belief(token, log_last).of(rows) if first else belief and belief.of(rows)
        _, log_filtered, log_last[rows] = filtered(window_factors(tables, part, carried), tables.precision)
        log_probs[rows, first : first + part.num_positions] = log_filtered
        token[rows] = part.last_tokens()
    return log_probs, Belief(token, log_last)
