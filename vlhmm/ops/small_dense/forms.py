"""The tables of one HMM in the forms that the compiled loops read, each made when it is first needed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

WIDTH, COLUMNS = 16, 8
"""Rows over states are filled up to a multiple of the one, packed transitions to one of the other."""


class Logs:
    """The logs as they are given: log p(z) (Z,), log p(z' | z) (Z, Z) and log p(x | z) (X, Z)."""

    def __init__(self, start: Array, moves: Array, emissions: Array) -> None:
        self.start, self.moves = np.ascontiguousarray(start), np.ascontiguousarray(moves)
        self.emissions = np.ascontiguousarray(emissions)
        self.width = _width(len(start))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.emissions.dtype

    @cached_property
    def alone(self) -> tuple[Any, ...]:
        return (
            _filled(self.start, self.width, -np.inf),
            _filled(self.moves, self.width, -np.inf).ravel(),
            self._moves_into,
            self._emission_rows,
            self.width,
        )

    @cached_property
    def lanes(self) -> tuple[Any, ...]:
        words = len(self.emissions)
        packed = _packed(self.moves, -np.inf)
        return self.start, packed, self._moves_into, self._emission_rows, self.width, words

    @cached_property
    def exact(self) -> tuple[Any, ...]:
        return self.start, self.moves, self._moves_into, self.emissions

    @cached_property
    def cumulative(self) -> tuple[Array, ...]:
        """Sums of probabilities in float64: of start (1, Z), of moves (Z, Z) and of words (Z, X)."""
        rows = (self.start[None], self.moves, self.emissions.T)
        return tuple(np.ascontiguousarray(np.exp(log_values, dtype=np.float64).cumsum(1)) for log_values in rows)

    @cached_property
    def _moves_into(self) -> Array:
        return np.ascontiguousarray(self.moves.T)

    @cached_property
    def _emission_rows(self) -> Array:
        return _filled(self.emissions, self.width, 0.0).ravel()


class Scaled:
    """Probabilities in a type, those of a word over the largest of them; numbers of at least `precise` are rounded as anywhere."""

    def __init__(self, start: Array, moves: Array, emissions: Array, least_emission: Array, peaks: Array) -> None:
        self._start, self._moves, self._emissions = start, moves, emissions
        self._least_emission = least_emission
        self.dtype, self.peaks, self.width = start.dtype, peaks, _width(len(start))
        info = np.finfo(self.dtype)
        least = [np.where(part > 0, part, 1).min() for part in (start, moves)]
        # A start probability of 0 is an impossible state, so the smallest positive one bounds the products at the first position.
        self._limits = np.array([1, *least, info.tiny / info.eps], self.dtype)

    @classmethod
    def of(cls, logs: Logs, dtype: np.dtype[Any]) -> Scaled | None:
        """None where a probability is too small for the type."""
        tiny = np.finfo(dtype).tiny
        log_emissions = torch.from_numpy(logs.emissions)
        peaks = log_emissions.amax(1)
        peaks[peaks == -torch.inf] = 0
        words, states = logs.emissions.shape
        # One more row, of ones: the emission of padding lanes, which have no token.
        emissions = np.ones((words + 1, _width(states)), dtype)
        rows = torch.from_numpy(emissions)[:words, :states]
        rows.copy_(log_emissions).sub_(peaks[:, None]).exp_()
        least = rows.amin(1)
        if not bool((least >= tiny).all()):
            if bool(((rows < tiny) & (log_emissions > -torch.inf)).any()):
                return None
            least = rows.masked_fill(rows == 0, 1).amin(1)
        parts = [np.exp(log_values, dtype=dtype) for log_values in (logs.start, logs.moves)]
        for values, log_values in zip(parts, (logs.start, logs.moves), strict=True):
            if bool(((values < tiny) & (log_values > -np.inf)).any()):
                return None
        no_word = np.append(least.numpy(), dtype.type(1)), np.append(peaks.numpy(), 0).astype(dtype)
        return cls(parts[0], parts[1], emissions, *no_word)

    @property
    def moves(self) -> Array:
        return self._moves

    @cached_property
    def alone(self) -> tuple[Any, ...]:
        moves = (_filled(one, self.width, 0.0).ravel() for one in (self._moves, self._moves.T))
        return _filled(self._start, self.width, 0.0), *moves, *self._rest

    @cached_property
    def lanes(self) -> tuple[Any, ...]:
        return self._start, *(_packed(one, 0.0) for one in (self._moves, self._moves.T)), *self._rest

    @property
    def _rest(self) -> tuple[Any, ...]:
        return self._emissions.ravel(), self._least_emission, self._limits, self.width

    @cached_property
    def exact(self) -> tuple[Any, ...]:
        _, least_start, least_move, precise = self._limits
        rest = self._emissions, self._least_emission, self.peaks, precise
        return self._start, self._moves, least_move, least_start, *rest


def _width(states: int) -> int:
    return -(-states // WIDTH) * WIDTH


def _filled(values: Array, width: int, filling: float) -> Array:
    """Rows of `width` numbers."""
    if values.shape[-1] == width:
        return np.ascontiguousarray(values)
    filled = np.full((*values.shape[:-1], width), filling, values.dtype)
    filled[..., : values.shape[-1]] = values
    return filled


def _packed(moves: Array, filling: float) -> Array:
    """Columns eight by eight, (columns / 8, Z, 8)."""
    states = len(moves)
    columns = _filled(moves, -(-states // COLUMNS) * COLUMNS, filling)
    return np.ascontiguousarray(columns.reshape(states, -1, COLUMNS).transpose(1, 0, 2)).ravel()
