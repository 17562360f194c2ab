"""Queries of a dense HMM with few states on a CPU, by compiled loops: a call costs little more than its arithmetic.

`vlhmm.ops.recursion` and `vlhmm.ops.max_product` are the specification. Where these loops give no answer (None), since a number
is out of range, a sequence impossible or a probability too small for float64, they say why, or do better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlhmm.ops import dispatch

__all__ = ["SmallCounts", "SmallDense", "SmallText", "served"]

Array = NDArray[Any]

MAX_EMISSIONS = 1 << 24
"""Entries of the emission table, of which copies are made."""
MAX_BYTES = 1 << 28
"""What messages and posteriors of a batch may take; larger batches go in windows."""
THREAD_WORK = 1 << 23
"""Products of numbers that are worth another thread, which takes about 50 us to start."""


def served(num_states: int, num_words: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether an HMM of this size is one for these loops."""
    return (
        num_states <= dispatch.SMALL_DENSE_STATES
        and num_states * num_words <= MAX_EMISSIONS
        and dtype in (torch.float32, torch.float64)
        and dispatch.loops_unavailable(device) is None
    )


@dataclass(frozen=True)
class SmallText:
    """Tokens (B, T) and lengths (B,), both int64, and the token after which states begin anew (-1: none)."""

    tokens: Array
    lengths: Array
    reset: int

    @property
    def operands(self) -> tuple[Any, ...]:
        return self.tokens, self.lengths, self.reset


@dataclass(frozen=True)
class SmallCounts:
    """How often start, moves and emissions are used in expectation, and log p(x_t | x_<t)."""

    start: Array
    moves: Array
    emissions: Array
    token_log_probs: Array


@dataclass(frozen=True)
class _Scaled:
    """What the sum-product loops read; rounding is no larger than elsewhere in numbers of at least `precise`."""

    operands: tuple[Any, ...]
    precise: Any
    dtype: Any


class SmallDense:
    """The tables of one HMM in the forms that the loops read, each made when it is first needed.

    Args:
        log_start: (Z,).
        log_moves: log p(z' | z), (Z, Z).
        log_emissions: log p(x | z), (X, Z).
    """

    def __init__(self, log_start: Array, log_moves: Array, log_emissions: Array) -> None:
        self._log_start, self._log_moves = np.ascontiguousarray(log_start), np.ascontiguousarray(log_moves)
        self._log_emissions = np.ascontiguousarray(log_emissions)
        self._dtype = self._log_emissions.dtype

    def token_log_probs(self, text: SmallText) -> Array | None:
        """log p(x_t | x_<t), 0 past the length, -inf from where a sequence is impossible."""
        from vlhmm.ops.small_dense import kernel

        for tables in self._by_range():
            log_probs = np.empty(text.tokens.shape, tables.dtype)
            operands = (tables.operands, text.operands, tables.precise, log_probs)
            if self._run(text, kernel.forward, operands) <= kernel.IMPOSSIBLE:
                return log_probs.astype(self._dtype, copy=False)
        return None

    def posterior(self, text: SmallText) -> Array | None:
        """p(z_t | x), (B, T, Z), 0 past the length."""
        found = self._smoothed(text, counted=False)
        return None if found is None else found[0].astype(self._dtype, copy=False)

    def expected_counts(self, text: SmallText) -> SmallCounts | None:
        """Summed over the batch."""
        from vlhmm.ops.small_dense import kernel

        found = self._smoothed(text, counted=True)
        if found is None:
            return None
        probs, log_probs, start, moves = found
        emissions = np.zeros(self._log_emissions.shape, probs.dtype)
        kernel.add_by_word(probs, text.operands, emissions)
        return SmallCounts(*(part.astype(self._dtype, copy=False) for part in (start, moves, emissions, log_probs)))

    def _smoothed(self, text: SmallText, counted: bool) -> tuple[Array, Array, Array, Array] | None:
        """p(z_t | x), log p(x_t | x_<t), and the counts of start and moves."""
        from vlhmm.ops.small_dense import kernel

        size, length = text.tokens.shape
        states = self._log_start.shape[0]
        if 2 * size * length * states * self._dtype.itemsize > MAX_BYTES:
            return None
        parts = len(self._parts(text))
        for tables in self._by_range():
            probs, log_probs = np.empty((size, length, states), tables.dtype), np.empty((size, length), tables.dtype)
            start = np.zeros((parts, states), tables.dtype)
            moves = np.zeros((parts, states if counted else 0, states), tables.dtype)
            operands = (tables.operands, text.operands, tables.precise, log_probs, probs)
            if self._run(text, kernel.smooth, operands, (start, moves)) == kernel.OK:
                total = moves.sum(0)
                if counted:
                    total *= tables.operands[1]
                return probs, log_probs, start.sum(0), total
        return None

    def best_paths(self, text: SmallText) -> tuple[Array, Array] | None:
        """The best path (B, T), -1 past the length, and its log p(x, z)."""
        from vlhmm.ops.small_dense import kernel

        if text.tokens.shape[1] * self._log_start.shape[0] * self._dtype.itemsize > MAX_BYTES:
            return None
        paths, log_probs = np.empty(text.tokens.shape, np.int64), np.empty(text.tokens.shape[0])
        operands = (self._logs, text.operands, paths, log_probs)
        if self._run(text, kernel.best_paths, operands) != kernel.OK:
            return None
        return paths, log_probs.astype(self._dtype)

    def sample(self, uniforms: Array, reset: int) -> tuple[Array, Array]:
        """States and tokens, (N, T) each, from numbers (N, T, 2) drawn from [0, 1)."""
        from vlhmm.ops.small_dense import kernel

        states, tokens = (np.empty(uniforms.shape[:2], np.int64) for _ in range(2))
        kernel.draw(self._cumulative, reset, uniforms, states, tokens)
        return states, tokens

    def _by_range(self) -> Iterator[_Scaled]:
        """The tables in their own type, then in float64, whose range is eight times as wide."""
        if self._scaled is not None:
            yield self._scaled
        if self._dtype != np.float64 and self._scaled_wide is not None:
            yield self._scaled_wide

    @cached_property
    def _scaled(self) -> _Scaled | None:
        return self._scaled_in(self._dtype)

    @cached_property
    def _scaled_wide(self) -> _Scaled | None:
        return self._scaled_in(np.dtype(np.float64))

    def _scaled_in(self, dtype: np.dtype[Any]) -> _Scaled | None:
        """None where a probability is too small for the type."""
        peaks = self._log_emissions.max(1)
        peaks[np.isneginf(peaks)] = 0
        info = np.finfo(dtype)
        parts = []
        for log_values in (self._log_start, self._log_moves, self._log_emissions - peaks[:, None]):
            values = np.exp(log_values, dtype=dtype)
            if bool(((values < info.tiny) & (log_values > -np.inf)).any()):
                return None
            parts.append(values)
        start, moves, emissions = parts
        least_move = np.where(moves > 0, moves, 1).min()
        least_emission = np.where(emissions > 0, emissions, 1).min(1)
        # A zero start is a state that is not possible, so this alone bounds the products at the beginning of a text.
        least_start = np.where(start > 0, start, 1).min()
        operands = (start, moves, least_move, least_start, emissions, least_emission, peaks.astype(dtype))
        return _Scaled(operands, dtype.type(info.tiny / info.eps), dtype)

    @cached_property
    def _logs(self) -> tuple[Array, ...]:
        return self._log_start, self._log_moves, np.ascontiguousarray(self._log_moves.T), self._log_emissions

    @cached_property
    def _cumulative(self) -> tuple[Array, ...]:
        rows = (self._log_start[None], self._log_moves, self._log_emissions.T)
        return tuple(np.ascontiguousarray(np.exp(log_values, dtype=np.float64).cumsum(1)) for log_values in rows)

    def _parts(self, text: SmallText) -> list[tuple[int, int]]:
        """Sequences for each thread, by the work that there is."""
        size = text.tokens.shape[0]
        work = text.tokens.size * self._log_start.shape[0] ** 2
        count = max(1, min(torch.get_num_threads(), size, work // THREAD_WORK))
        bounds = [size * number // count for number in range(count + 1)]
        return list(pairwise(bounds))

    def _run(
        self, text: SmallText, loop: Callable[..., None], operands: tuple[Any, ...], sums: tuple[Array, ...] = ()
    ) -> int:
        """The worst status of all sequences; each thread has a row of its own of the `sums`."""
        status = np.empty(text.tokens.shape[0], np.int8)
        parts = self._parts(text)

        def work(number: int) -> None:
            loop(*operands, *(rows[number] for rows in sums), status, *parts[number])

        if len(parts) == 1:
            work(0)
        else:
            with ThreadPoolExecutor(len(parts)) as threads:
                list(threads.map(work, range(len(parts))))
        return int(status.max())
