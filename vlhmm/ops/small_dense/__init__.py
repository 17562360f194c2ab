"""Queries of a dense HMM with few states on a CPU, by compiled loops: a call costs little more than its arithmetic.

`vlhmm.ops.recursion` and `vlhmm.ops.max_product` are the specification. `lanes` takes sixteen sequences together, `alone` the few that
are left; `exact` those that fail their underflow check. Without a result (None: a token out of range, an impossible sequence, or underflow
of float64) the caller falls back to code that reports the error or computes in log space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from vlhmm.ops import dispatch
from vlhmm.ops.small_dense.forms import COLUMNS, Array, Logs, Scaled

__all__ = ["SmallCounts", "SmallDense", "SmallText", "served"]

MAX_EMISSIONS = 1 << 24
"""Entries of the emission table, of which copies are made."""
MAX_BYTES = 1 << 28
"""What messages and posteriors of a batch may take; larger batches go in windows."""
THREAD_WORK = 1 << 27
"""Products of numbers that are worth another thread: they take 1.4 ms. It takes about 50 us to start, and more where threads of OpenMP still
spin after an operation of torch."""
TOKEN_WORK = 512
"""What a token takes beside its products (reading it, its emissions, its log-probability or state), in products: 4 to 6 ns."""
LANES = 16
"""Sequences that are taken together."""
MIN_LANES = 10
"""So few cost less one after the other."""
MIN_LARGE = 4
"""So few of an HMM with many states cost less as a matrix product a position."""

NOTHING = {np.dtype(dtype): np.empty((0, 0), dtype) for dtype in (np.float32, np.float64)}
"""Room for what is not asked for."""
NO_STATUS = np.empty(0, np.int8)
"""No previous call."""
NO_LENGTHS = np.empty(0, np.int64)
"""All sequences are as long as the batch, and in their order."""
_OK, _IMPOSSIBLE, _TODO = 0, 1, 4
"""Of `exact`, which is imported when there is a question."""

Loop = Callable[..., Any]
"""Of one query: takes its own row of each sum, the status, and the first and last sequence."""


def served(num_states: int, num_words: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether these loops are the backend for an HMM of this size."""
    return (
        num_states <= dispatch.MAX_LOOP_STATES
        and num_states * num_words <= MAX_EMISSIONS
        and dtype in (torch.float32, torch.float64)
        and dispatch.loops_unavailable(device) is None
    )


class SmallText:
    """Tokens (B, T) and lengths (B,), both int64, and the reset token, after which states restart from the start distribution (-1: none)."""

    __slots__ = ("operands", "tokens")

    def __init__(self, tokens: Array, lengths: Array, reset: int) -> None:
        self.tokens = tokens
        # Sequences of one block of lanes should have similar lengths: all lanes run to the longest.
        ragged = len(lengths) > LANES and (lengths != lengths[0]).any()
        self.operands = tokens, lengths, reset, np.argsort(lengths, kind="stable") if ragged else NO_LENGTHS


@dataclass(frozen=True)
class SmallCounts:
    """How often start, moves and emissions are used in expectation, and log p(x_t | x_<t)."""

    start: Array
    moves: Array
    emissions: Array
    token_log_probs: Array


class SmallDense:
    """The queries of one HMM.

    Args:
        log_start: (Z,).
        log_moves: log p(z' | z), (Z, Z).
        log_emissions: log p(x | z), (X, Z).
    """

    def __init__(self, log_start: Array, log_moves: Array, log_emissions: Array) -> None:
        self._logs = Logs(log_start, log_moves, log_emissions)
        self._dtype, self._states = self._logs.dtype, len(self._logs.start)
        self._planned: tuple[tuple[int, ...], _Plan | None] = ((), None)

    def log_prob(self, text: SmallText) -> Array | None:
        """log p(x), -inf of impossible sequences."""
        found = self._filtered(text, per_token=False)
        return None if found is None else found[1].astype(self._dtype, copy=False)

    def token_log_probs(self, text: SmallText) -> Array | None:
        """log p(x_t | x_<t), 0 past the length, -inf from where a sequence is impossible."""
        found = self._filtered(text, per_token=True)
        return None if found is None else found[0].astype(self._dtype, copy=False)

    def _filtered(self, text: SmallText, per_token: bool) -> tuple[Array, Array] | None:
        """log p(x_t | x_<t) if requested, and log p(x)."""
        plan = self._plan(text, kept=0)
        if plan is None:
            return None
        lanes, alone, exact = _loops()
        for tables in self._by_range():
            dtype = tables.dtype
            log_probs = np.empty(text.tokens.shape, dtype) if per_token else NOTHING[dtype]
            log_prob = np.empty(len(text.tokens), dtype)
            operands = (text.operands, tables.peaks, log_probs, log_prob)
            if plan.one_by_one and alone.forward(tables.alone, *operands, NO_STATUS, 0, plan.size):
                return log_probs, log_prob
            worst = plan.run(
                lambda *part, tables=tables, rest=operands: lanes.forward(tables.lanes, *rest, *part),
                lambda *part, tables=tables, rest=operands: alone.forward(tables.alone, *rest, *part),
                lambda *part, tables=tables, found=(log_probs, log_prob): exact.forward(
                    tables.exact, text.operands, *found, *part
                ),
            )
            if worst <= _IMPOSSIBLE:
                return log_probs, log_prob
        return None

    def posterior(self, text: SmallText) -> Array | None:
        """p(z_t | x), (B, T, Z), 0 past the length."""
        plan, tables = self._plan(text, kept=text.tokens.shape[1] * self._states), self._scaled
        if plan is not None and plan.one_by_one and tables is not None:
            # Fast path for short texts: one call without a thread pool.
            probs = np.empty((*text.tokens.shape, self._states), tables.dtype)
            nothing, start = NOTHING[tables.dtype], np.zeros(self._states, tables.dtype)
            none = nothing.ravel()
            operands = (text.operands, tables.peaks, nothing, none, probs, start, none, NO_STATUS)
            if _loops()[1].smooth(tables.alone, *operands, 0, plan.size):
                return probs
        found = self._smoothed(text, counted=False)
        return None if found is None else found.probs.astype(self._dtype, copy=False)

    def expected_counts(self, text: SmallText) -> SmallCounts | None:
        """Summed over the batch."""
        found = self._smoothed(text, counted=True)
        if found is None:
            return None
        emissions = np.zeros(self._logs.emissions.shape, found.probs.dtype)
        _loops()[2].add_by_word(found.probs, text.operands, emissions)
        parts = (found.start, found.moves, emissions, found.log_probs)
        return SmallCounts(*(part.astype(self._dtype, copy=False) for part in parts))

    def _smoothed(self, text: SmallText, counted: bool) -> _Smoothed | None:
        size, length = text.tokens.shape
        plan = self._plan(text, kept=length * self._states)
        if plan is None or 2 * size * length * self._states * self._dtype.itemsize > MAX_BYTES:
            return None
        lanes, alone, exact = _loops()
        states, parts = self._states, len(plan.parts)
        rows = -(-states // COLUMNS) * COLUMNS if counted else 0
        for tables in self._by_range():
            # log p is not read if no counts are requested.
            dtype = tables.dtype
            log_probs = np.empty((size, length), dtype) if counted else NOTHING[dtype]
            log_prob = np.empty(size, dtype) if counted else NOTHING[dtype][0:0].ravel()
            probs = np.empty((size, length, states), dtype)
            start, moves = np.zeros((parts, states), dtype), np.zeros((parts, rows * tables.width), dtype)
            operands = (text.operands, tables.peaks, log_probs, log_prob, probs)
            if not (plan.one_by_one and alone.smooth(tables.alone, *operands, start[0], moves[0], NO_STATUS, 0, size)):
                if plan.one_by_one:
                    start.fill(0)
                    moves.fill(0)
                worst = plan.run(
                    lambda *part, tables=tables, rest=operands: lanes.smooth(tables.lanes, *rest, *part),
                    lambda *part, tables=tables, rest=operands: alone.smooth(tables.alone, *rest, *part),
                    lambda start, moves, *part, tables=tables, found=(log_probs, log_prob, probs): exact.smooth(
                        *(tables.exact, text.operands, *found, start, moves.reshape(-1, tables.width), *part)
                    ),
                    (start, moves),
                )
                if worst != _OK:
                    continue
            if not counted:
                return _Smoothed(probs, log_probs, start, moves)
            total = (moves.sum(0) if parts > 1 else moves[0]).reshape(rows, tables.width)[:states, :states]
            return _Smoothed(probs, log_probs, start.sum(0) if parts > 1 else start[0], total * tables.moves)
        return None

    def best_paths(self, text: SmallText) -> tuple[Array, Array] | None:
        """The best path (B, T), -1 past the length, and its log p(x, z)."""
        plan = self._plan(text, kept=text.tokens.shape[1] * self._states)
        if plan is None:
            return None
        from vlhmm.ops.small_dense import best_exact, best_lanes

        _, alone, _ = _loops()
        logs, found = self._logs, (np.empty(text.tokens.shape, np.int64), np.empty(len(text.tokens), self._dtype))
        if plan.one_by_one and alone.best_paths(logs.alone, text.operands, *found, NO_STATUS, 0, plan.size):
            return found
        worst = plan.run(
            lambda *part: best_lanes.best_paths(logs.lanes, text.operands, *found, *part),
            lambda *part: alone.best_paths(logs.alone, text.operands, *found, *part),
            lambda *part: best_exact.best_paths(logs.exact, text.operands, *found, *part),
        )
        return None if worst != _OK else found

    def sample(self, uniforms: Array, reset: int) -> tuple[Array, Array]:
        """States and tokens, (N, T) each, from numbers (N, T, 2) drawn from [0, 1)."""
        states, tokens = (np.empty(uniforms.shape[:2], np.int64) for _ in range(2))
        _loops()[2].draw(self._logs.cumulative, reset, uniforms, states, tokens)
        return states, tokens

    def _by_range(self) -> Iterator[Scaled]:
        """The tables in their own type, then in float64, whose range is eight times as wide."""
        if self._scaled is not None:
            yield self._scaled
        if self._dtype != np.float64 and self._scaled_wide is not None:
            yield self._scaled_wide

    @cached_property
    def _scaled(self) -> Scaled | None:
        return Scaled.of(self._logs, self._dtype)

    @cached_property
    def _scaled_wide(self) -> Scaled | None:
        return Scaled.of(self._logs, np.dtype(np.float64))

    def _plan(self, text: SmallText, kept: int) -> _Plan | None:
        """`kept`: how many numbers are stored for each sequence. None: matrix products are faster."""
        size, positions = text.tokens.shape
        question = size, positions, kept, torch.get_num_threads()
        if question != self._planned[0]:
            self._planned = question, self._new_plan(*question)
        return self._planned[1]

    def _new_plan(self, size: int, positions: int, kept: int, threads: int) -> _Plan | None:
        large = self._states > dispatch.SMALL_DENSE_STATES
        work = size * positions * (self._states**2 + TOKEN_WORK)
        # With many states a step is a matrix product (BLAS), in which all threads share one block of sequences.
        if large and (size < MIN_LARGE or 2 * -(-size // LANES) < threads):
            return None
        count = min(threads, size if size < LANES else -(-size // LANES), work // THREAD_WORK) or 1
        fits = LANES * kept * count * self._dtype.itemsize <= MAX_BYTES
        least = (MIN_LARGE if large else MIN_LANES) if fits else size + 1
        if (large and not fits) or kept * count * self._dtype.itemsize > MAX_BYTES:
            return None
        step = -(-size // (count * LANES)) * LANES if size >= LANES else -(-size // count)
        bounds = [*range(0, size, step), size]
        return _Plan(size, list(pairwise(bounds)), least, not large)


@cache
def _loops() -> tuple[Any, Any, Any]:
    """Imported lazily, at the first query: numba takes long to import."""
    from vlhmm.ops.small_dense import alone, exact, lanes

    return lanes, alone, exact


@dataclass(frozen=True)
class _Smoothed:
    probs: Array
    log_probs: Array
    start: Array
    moves: Array


@dataclass(frozen=True)
class _Plan:
    """The assignment of sequences to threads and loops."""

    size: int
    parts: list[tuple[int, int]]
    """Of each thread."""
    least: int
    """So many are taken together."""
    few_states: bool
    """Then they can be taken one by one."""

    @cached_property
    def one_by_one(self) -> bool:
        """All sequences, in one thread."""
        return self.few_states and self.size < self.least and len(self.parts) == 1

    def run(self, in_lanes: Loop, alone: Loop, exact: Loop, sums: tuple[Array, ...] = ()) -> int:
        """The worst status of all sequences; each thread has a row of its own of the `sums`."""
        status = np.full(self.size, _TODO, np.int8)

        def part(number: int) -> int:
            first, last = self.parts[number]
            own = (*(rows[number] for rows in sums), status)
            left = (last - first) % LANES
            together = last if left >= self.least or not left else last - left
            answered = together - first >= self.least
            if answered:
                answered = in_lanes(*own, first, together)
                if answered and together == last:
                    return _OK
            if not self.few_states:
                return _TODO
            return _OK if alone(*own, first, last) else int(exact(*own, first, last))

        if len(self.parts) == 1:
            return part(0)
        with ThreadPoolExecutor(len(self.parts)) as threads:
            return max(threads.map(part, range(len(self.parts))))
