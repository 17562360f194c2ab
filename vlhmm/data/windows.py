"""From a corpus to the windows of one epoch of training: the same windows for the same seed and epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.data.joined import JoinedIds
from vlhmm.data.merges import Merges
from vlhmm.data.tokens import Tokens

WindowKind = Literal["carried", "independent"]

IN_MEMORY_TOKENS = 1 << 28
"""A longer text is put into its random order window by window, not as a whole; but for one whose merges are undone."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the text, cut into windows (B, T)."""

    tokens: Tokens
    kind: WindowKind
    """carried: documents in random order, joined and cut into B streams, whose windows follow one another;
    independent: windows of the text as it stands, in random order, each on its own."""
    batch_size: int
    length: int
    seed: int
    number: int
    merges: Merges | None = None
    """Undone anew in every epoch; carried only. What no longer fits into as many tokens as the text has is left out, at the end of
    the random order."""

    @property
    def num_windows(self) -> int:
        """Less than one window's worth of tokens is left out, a different part in every epoch."""
        return len(self.tokens) // self.batch_size // self.length

    def check(self) -> None:
        needed = self.batch_size * self.length
        if not self.num_windows:
            raise ValueError(
                f"the training text has {len(self.tokens):,} tokens, but one window of batch_size {self.batch_size} x "
                f"length {self.length} needs {needed:,}: make batch_size or window smaller, or give more text"
            )

    def windows(self, first: int = 0) -> Iterator[Int[Tensor, "B T"]]:
        """The windows from the one numbered `first` on."""
        random = np.random.default_rng([self.seed, self.number])
        if self.kind == "carried":
            read = self._streams(random)
            for window in range(first, self.num_windows):
                yield _as_tensor(read(window * self.length, (window + 1) * self.length))
        else:
            count, left = divmod(len(self.tokens), self.length)
            offset = int(random.integers(left + 1))
            order = random.permutation(count)
            for window in range(first, self.num_windows):
                chosen = np.sort(order[window * self.batch_size : (window + 1) * self.batch_size])
                yield _as_tensor(self._rows(offset, count, chosen))

    def _rows(self, offset: int, count: int, chosen: NDArray[Any]) -> NDArray[Any]:
        """Those windows of the text that begin `offset` tokens into it."""
        ids = self.tokens.ids
        if isinstance(ids, JoinedIds):
            found: NDArray[Any] = ids[offset + chosen[:, None] * self.length + np.arange(self.length)]
            return found
        # Slicing whole rows of an array in memory is three times as fast as indexing single tokens of a memory-mapped file.
        rows = np.asarray(ids)[offset : offset + count * self.length].reshape(count, self.length)
        taken: NDArray[Any] = rows[chosen]
        return taken

    def _streams(self, random: np.random.Generator) -> Callable[[int, int], NDArray[Any]]:
        """What gives a stretch of all streams of the text in random order."""
        length = self.num_windows * self.length
        order = random.permutation(self.tokens.num_documents)
        begins, ends = self.tokens.offsets[:-1][order], self.tokens.offsets[1:][order]
        # With merges undone, the source of a position depends on all positions before it, so there is no random access.
        if len(self.tokens) <= IN_MEMORY_TOKENS or self.merges is not None:
            joined = self._joined(order, begins, ends - begins)
            if self.merges is not None:
                joined = self.merges.undo(joined, random)
            streams = joined[: self.batch_size * length].reshape(self.batch_size, -1)
            return lambda first, end: streams[:, first:end]
        # Position i of the joined text lies in some document, (i - where that begins here) tokens into it.
        ends_here = np.cumsum(ends - begins)

        def read(first: int, end: int) -> NDArray[Any]:
            places = np.arange(self.batch_size)[:, None] * length + np.arange(first, end)
            document = np.searchsorted(ends_here, places, side="right")
            found: NDArray[Any] = self.tokens.ids[ends[document] - (ends_here[document] - places)]
            return found

        return read

    def _joined(self, order: NDArray[Any], begins: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
        """Documents in this order, in memory."""
        if len(sizes) and (sizes == sizes[0]).all():
            # Rows are copied whole, a hundred times as fast as tokens one by one.
            rows: NDArray[Any] = np.asarray(self.tokens.ids).reshape(len(sizes), sizes[0])[order]
            return rows.reshape(-1)
        shift = begins - (np.cumsum(sizes) - sizes)
        joined: NDArray[Any] = self.tokens.ids[np.arange(len(self.tokens)) + np.repeat(shift, sizes)]
        return joined


def _as_tensor(ids: NDArray[Any]) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
