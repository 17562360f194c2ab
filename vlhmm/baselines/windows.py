"""The windows of every epoch of a baseline's training; the same for the same seed, epoch and number of the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.data.windows import Epoch

MIN_LENGTH = 5
"""Tokens of the shortest window of random length, but for the last of an epoch."""


@dataclass(frozen=True)
class ShuffledWindows:
    """As the HMM is trained: documents in new order every epoch, windows of one length."""

    tokens: Tokens
    batch_size: int
    length: int
    seed: int

    def check(self) -> None:
        self._epoch(0).check()

    def count(self, epoch: int) -> int:
        return self._epoch(epoch).num_windows

    def windows(self, epoch: int, first: int) -> Iterator[Int[Tensor, "B T"]]:
        return self._epoch(epoch).windows(first)

    def _epoch(self, number: int) -> Epoch:
        return Epoch(self.tokens, "carried", self.batch_size, self.length, self.seed, number)


@dataclass(frozen=True)
class WindowsInOrder:
    """The text in its order, the same windows of one length in every epoch."""

    tokens: Tokens
    batch_size: int
    length: int

    def check(self) -> None:
        # Both ask for as much text.
        ShuffledWindows(self.tokens, self.batch_size, self.length, 0).check()

    def count(self, epoch: int) -> int:
        return len(self.tokens) // self.batch_size // self.length

    def windows(self, epoch: int, first: int) -> Iterator[Int[Tensor, "B T"]]:
        num_positions = self.count(epoch) * self.length
        streams = self.tokens.ids[: num_positions * self.batch_size].reshape(self.batch_size, -1)
        for begin in range(first * self.length, num_positions, self.length):
            yield torch.from_numpy(streams[:, begin : begin + self.length].astype(np.int64))


@dataclass(frozen=True)
class RandomLengthWindows:
    """As AWD-LSTM is trained: the text in its order, windows of random length around `length`, sometimes around half of it."""

    tokens: Tokens
    batch_size: int
    length: int
    seed: int

    def check(self) -> None:
        if len(self.tokens) < self.batch_size * MIN_LENGTH:
            raise ValueError(
                f"the training text has {len(self.tokens):,} tokens, but batch_size {self.batch_size} x {MIN_LENGTH} needs "
                f"{self.batch_size * MIN_LENGTH:,}: make batch_size smaller, or give more text"
            )

    def count(self, epoch: int) -> int:
        return len(self._ends(epoch))

    def windows(self, epoch: int, first: int) -> Iterator[Int[Tensor, "B T"]]:
        num_positions = len(self.tokens) // self.batch_size
        streams = self.tokens.ids[: num_positions * self.batch_size].reshape(self.batch_size, -1)
        ends = self._ends(epoch)
        for begin, end in zip([0, *ends[:-1]][first:], ends[first:], strict=True):
            yield torch.from_numpy(streams[:, begin:end].astype(np.int64))

    def _ends(self, epoch: int) -> list[int]:
        """Where each window ends; every position is in one."""
        random = np.random.default_rng([self.seed, epoch])
        num_positions = len(self.tokens) // self.batch_size
        most = -(-num_positions // MIN_LENGTH)
        around = np.where(random.random(most) < 0.95, self.length, self.length / 2)
        lengths = np.maximum(MIN_LENGTH, random.normal(around, 5).astype(np.int64))
        ends = np.minimum(np.cumsum(lengths), num_positions)
        num_windows = int(np.searchsorted(ends, num_positions)) + 1
        return [int(end) for end in ends[:num_windows]]
