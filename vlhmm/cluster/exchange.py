"""Exchange: move words between blocks, one at a time or a few rare ones together, to raise the information.

With n(a, b) the bigrams of blocks a and b, and f(n) = n log n, the information times the number of bigrams is, but for
a constant,

    F = sum_ab f(n(a, b)) - sum_a f(n(a, .)) - sum_b f(n(., b)).

Moving word w into block b adds w's bigrams to row and column b, so the change of F needs one row and one column of n
for each block that w is next to. Counts next to a rare word are mostly small: for these f(n + 1) - f(n), ...,
f(n + 8) - f(n) are tabulated for all n, and the gains of many words are sums of rows of that table.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from vlhmm.cluster.bigrams import Bigrams, Floats, Ints, information_of, n_log_n, sum_by
from vlhmm.compiled import numba_installed

TABULATED = 8
"""Counts next to a word up to here are looked up."""
MAX_TABLE = 1 << 25
"""Values of n log n that are kept for compiled loops, 256 MiB; larger counts are few, and theirs are computed."""
THREAD_CELLS = 1 << 20
"""Neighbours x blocks that are worth a thread: about a millisecond."""
MAX_WORDS = 256
MAX_CELLS = 1 << 23
"""Words judged together against the same counts: bounds on their number and on the memory it takes."""


@dataclass(frozen=True)
class Neighbours:
    """For each word, in order, the words on one side of it (not itself) and how often."""

    word: Ints
    neighbour: Ints
    count: Floats
    first: Ints
    """Entries of word w are first[w] to first[w + 1]."""

    @classmethod
    def build(cls, word: Ints, neighbour: Ints, count: Floats, num_words: int) -> "Neighbours":
        order = np.lexsort((neighbour, word))
        first = np.searchsorted(word[order], np.arange(num_words + 1))
        return cls(word[order], neighbour[order], count[order], first)

    def entries(self, words: Ints) -> Ints:
        """The positions of all entries of these words."""
        lengths = self.first[words + 1] - self.first[words]
        ends = np.cumsum(lengths)
        return np.asarray(np.arange(ends[-1]) + np.repeat(self.first[words] - (ends - lengths), lengths))

    def by_block(self, start: int, stop: int, block_of_word: Ints, num_blocks: int) -> Floats:
        """Counts of words start..stop next to each block, (words, blocks)."""
        span = slice(self.first[start], self.first[stop])
        cell = (self.word[span] - start) * num_blocks + block_of_word[self.neighbour[span]]
        cells = (stop - start) * num_blocks
        return sum_by(cell, self.count[span], cells).reshape(stop - start, num_blocks)


class Exchange:
    """A partition of words that are ranked by count, and the bigram counts of its blocks, kept in step.

    The first `num_movable` words move among the first `open_blocks` blocks; a word after them has the last block to
    itself.
    """

    def __init__(self, bigrams: Bigrams, num_movable: int, open_blocks: int) -> None:
        self.bigrams = bigrams
        self.num_movable = num_movable
        self.open_blocks = open_blocks
        self.as_left = bigrams.count_as_left
        self.as_right = bigrams.count_as_right
        alike = bigrams.left == bigrams.right
        self.with_itself = sum_by(bigrams.left[alike], bigrams.count[alike], bigrams.vocab_size)
        left, right, count = bigrams.left[~alike], bigrams.right[~alike], bigrams.count[~alike]
        self.following = Neighbours.build(left, right, count, bigrams.vocab_size)
        self.preceding = Neighbours.build(right, left, count, bigrams.vocab_size)
        # No sum of the gains has a larger count than four times all.
        largest = 4 * int(bigrams.count.sum())
        self._f = n_log_n(np.arange(float(min(largest + 1, MAX_TABLE)))) if numba_installed() else None
        cyclic = np.arange(bigrams.vocab_size) % open_blocks
        cyclic[num_movable:] = open_blocks
        self.set_blocks(cyclic)

    def set_blocks(self, block_of_word: Ints) -> None:
        """Starts over from another partition."""
        num_blocks = int(block_of_word.max()) + 1
        self.num_blocks = num_blocks
        self.block_of_word = block_of_word.copy()
        self.joint = self.bigrams.joint(block_of_word, num_blocks)
        # Both n and its transpose, so that a column is read as fast as a row: entry b of line g is n(b, g), entry b of
        # line num_blocks + g is n(g, b).
        self._lines = np.empty((2, num_blocks, num_blocks))
        self._f_lines = np.empty_like(self._lines)
        self._increments = np.empty((TABULATED, 2, num_blocks, num_blocks), np.float32)
        for row in range(num_blocks):
            self._refresh(np.full(num_blocks, row), np.arange(num_blocks))
        self.row_total = self.joint.sum(1)
        self.column_total = self.joint.sum(0)
        self.sizes = np.bincount(block_of_word, minlength=num_blocks)

    @property
    def information(self) -> float:
        return information_of(self.joint)

    def objective(self) -> float:
        """F of the head of this file."""
        cells = self._f_lines[1].sum()
        return float(cells - n_log_n(self.row_total).sum() - n_log_n(self.column_total).sum())

    def gains(self, start: int, stop: int) -> Floats:
        """What F gains if one of the words start..stop moves, alone, to each open block: (words, open blocks)."""
        neighbours = sum(int(side.first[stop] - side.first[start]) for side in (self.following, self.preceding))
        parts = min(torch.get_num_threads(), stop - start, neighbours * self.num_blocks // THREAD_CELLS)
        if parts <= 1:
            return self._gains(start, stop)
        bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
        # Compiled loops, and numpy's on large arrays, run side by side.
        return np.concatenate(list(self._threads.map(self._gains, bounds[:-1], bounds[1:])))

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(torch.get_num_threads())

    def _gains(self, start: int, stop: int) -> Floats:
        f = n_log_n
        following = self.following.by_block(start, stop, self.block_of_word, self.num_blocks)
        preceding = self.preceding.by_block(start, stop, self.block_of_word, self.num_blocks)
        words = np.arange(stop - start)
        home = self.block_of_word[start:stop]
        gain, leaving = self._gains_and_leaving(start, stop, following, preceding, home)
        leaving[words, home] = 0
        loss = leaving.sum(1, keepdims=True)
        at_home = np.diagonal(self.joint)[home][:, None]
        alone = self.with_itself[start:stop, None]
        to_home, after_home = following[words, home][:, None], preceding[words, home][:, None]
        loss += f(at_home) - f(at_home - to_home - after_home - alone)
        as_left, as_right = self.as_left[start:stop, None], self.as_right[start:stop, None]
        rows, columns = self.row_total[home][:, None], self.column_total[home][:, None]
        loss -= f(rows) - f(rows - as_left) + f(columns) - f(columns - as_right)
        gain -= loss
        gain[words, home] = 0
        return gain[:, : self.open_blocks]

    def _gains_and_leaving(
        self, start: int, stop: int, following: Floats, preceding: Floats, home: Ints
    ) -> tuple[Floats, Floats]:
        """What entering each block gains, as if the word left its own for free, and what leaving that takes from the other blocks."""
        alone, totals = self.with_itself[start:stop], np.stack([self.row_total, self.column_total])
        own = np.stack([self.as_left[start:stop], self.as_right[start:stop]])
        if self._f is not None:
            from vlhmm.cluster import kernel

            counts = np.concatenate([following, preceding], axis=1)
            gain, leaving = np.zeros_like(following), np.empty_like(following)
            lines, f_lines = (part.reshape(-1, self.num_blocks) for part in (self._lines, self._f_lines))
            kernel.add_tabulated(gain, counts, self._increments.reshape(TABULATED, -1, self.num_blocks))
            kernel.add_others(gain, counts, lines, f_lines, TABULATED, self._f)
            kernel.add_home_and_totals(
                *(gain, leaving, following, preceding, home, self._lines, self._f_lines, alone, totals, own, self._f)
            )
            return gain, leaving
        f = n_log_n
        gain = self._gains_apart(following, preceding)

        # So far as if the word had been nowhere: its own bigrams must leave the row and the column of its block first.
        words = np.arange(stop - start)
        into_home, from_home = self._lines[0, home], self._lines[1, home]
        to_home, after_home = following[words, home][:, None], preceding[words, home][:, None]
        f_into, f_from = self._f_lines[0, home], self._f_lines[1, home]
        f_into_less, f_from_less = f(into_home - preceding), f(from_home - following)
        gain += f(into_home - preceding + to_home) - f_into_less - f(into_home + to_home) + f_into
        gain += f(from_home - following + after_home) - f_from_less - f(from_home + after_home) + f_from

        # A cell of the diagonal is in a row and a column at once, and takes the word's bigrams with itself.
        diagonal = np.diagonal(self.joint)
        gain += f(diagonal + following + preceding + alone[:, None]) - f(diagonal + following) - f(diagonal + preceding)
        gain += f(diagonal)

        for total, of_word in zip(totals, own, strict=True):
            gain += f(total) - f(total + of_word[:, None])

        return gain, f_from - f_from_less + f_into - f_into_less

    def _gains_apart(self, following: Floats, preceding: Floats) -> Floats:
        """sum_g f(n(b, g) + following(g)) - f(n(b, g)), and the same down the columns, for every word and block b."""
        num_blocks = self.num_blocks
        counts = np.concatenate([following, preceding], axis=1)
        gain = np.zeros((len(following), num_blocks))
        word, line = np.nonzero((counts > 0) & (counts <= TABULATED))
        if len(word):
            increments = self._increments.reshape(TABULATED, -1, num_blocks)
            _add_rows(gain, word, increments[counts[word, line].astype(np.int64) - 1, line])
        word, line = np.nonzero(counts > TABULATED)
        if len(word):
            more = self._lines.reshape(-1, num_blocks)[line] + counts[word, line][:, None]
            _add_rows(gain, word, n_log_n(more) - self._f_lines.reshape(-1, num_blocks)[line])
        return gain

    def move(self, words: Ints, blocks: Ints) -> None:
        """Puts each word into its block; the words are distinct."""
        block_of, num_blocks = self.block_of_word, self.num_blocks
        after, before = self.following.entries(words), self.preceding.entries(words)
        # A bigram of two moved words is among the following ones already.
        before = before[~np.isin(self.preceding.neighbour[before], words)]
        left = np.concatenate([self.following.word[after], self.preceding.neighbour[before], words])
        right = np.concatenate([self.following.neighbour[after], self.preceding.word[before], words])
        count = np.concatenate([self.following.count[after], self.preceding.count[before], self.with_itself[words]])
        old = block_of[words]
        cells = self.joint.reshape(-1)
        left_cells = block_of[left] * num_blocks + block_of[right]
        np.subtract.at(cells, left_cells, count)
        block_of[words] = blocks
        entered_cells = block_of[left] * num_blocks + block_of[right]
        np.add.at(cells, entered_cells, count)
        self._refresh(*np.divmod(np.concatenate([left_cells, entered_cells]), num_blocks))
        for total, of_word in ((self.row_total, self.as_left), (self.column_total, self.as_right)):
            np.subtract.at(total, old, of_word[words])
            np.add.at(total, blocks, of_word[words])
        self.sizes += np.bincount(blocks, minlength=num_blocks) - np.bincount(old, minlength=num_blocks)

    def _refresh(self, row: Ints, column: Ints) -> None:
        """Brings what is derived from these cells of `joint` up to date."""
        count = self.joint[row, column]
        f_count = n_log_n(count)
        increments = n_log_n(count + np.arange(1, TABULATED + 1)[:, None]) - f_count
        for side, index in enumerate(((column, row), (row, column))):
            self._lines[side][index] = count
            self._f_lines[side][index] = f_count
            self._increments[:, side, *index] = increments

    def batches(self, share: float) -> list[tuple[int, int]]:
        """Stretches of the movable words, each at most this share of the text (or one word)."""
        mass = np.cumsum((self.as_left + self.as_right)[: self.num_movable])
        entries = np.diff(self.following.first) + np.diff(self.preceding.first)
        cells = np.cumsum(np.minimum(entries, 2 * self.num_blocks)[: self.num_movable] * self.num_blocks)
        stretches = []
        start = 0
        while start < self.num_movable:
            below = (mass[start - 1], cells[start - 1]) if start else (0.0, 0)
            stop = min(
                np.searchsorted(mass, below[0] + share * mass[-1], "right"),
                np.searchsorted(cells, below[1] + MAX_CELLS, "right"),
                start + MAX_WORDS,
            )
            stop = max(int(stop), start + 1)
            stretches.append((start, stop))
            start = stop
        return stretches

    def can_leave(self, words: Ints) -> npt.NDArray[np.bool_]:
        """Which of these words can leave their blocks together. Where that would empty one, its first stays."""
        keep = np.ones(len(words), bool)
        old = self.block_of_word[words]
        leaving = np.bincount(old, minlength=self.num_blocks)
        for block in np.flatnonzero((leaving > 0) & (leaving == self.sizes)):
            keep[np.argmax(old == block)] = False
        return keep


def _add_rows(total: Floats, index: Ints, rows: npt.NDArray[np.floating]) -> None:
    """total[index[i]] += rows[i], for a rising index."""
    first = np.flatnonzero(np.diff(index, prepend=-1))
    total[index[first]] += np.add.reduceat(rows, first, axis=0)
