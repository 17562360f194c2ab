"""Exchange: move words between blocks, one at a time or a few rare ones together, to raise the information.

With n(a, b) the bigrams of blocks a and b, and f(n) = n log n, information times the number of bigrams is, but for a constant,

    F = sum_ab f(n(a, b)) - sum_a f(n(a, .)) - sum_b f(n(., b)).

Moving word w into block b adds w's bigrams to row and column b, so the change of F needs one row and one column of n for each
block that w is next to. Counts next to a rare word are mostly 1 to 4: for these f(n + 1) - f(n), ..., f(n + 4) - f(n)
are tabulated for all n, and the gains of many words are sums of rows of that table.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from vlhmm.cluster.bigrams import Bigrams, Floats, Ints, information_of, n_log_n, sum_by

SWEEPS = 40
"""Sweeps of annealing."""
CLIMBS = 12
"""Sweeps that only go up, at most."""
COLDEST = 0.008
"""The last temperature, in nats a bigram."""
TABULATED = 4
"""Counts next to a word up to here are looked up."""
MOST_WORDS = 256
MOST_CELLS = 1 << 23
MASS = 4e-3
"""Words are judged together against the same counts; these bound the number of words, the memory and the share of the text."""
RARE_EVERY = 4
"""The rarest words are annealed in every fourth sweep only: they are many, and weigh little."""
LEAST_GAIN = 1e-3
"""In nats over the whole text; the table is in single precision, smaller gains would be noise."""


@dataclass(frozen=True)
class Clock:
    """When the search began and how long it may take."""

    started: float
    max_seconds: float | None

    @classmethod
    def start(cls, max_seconds: float | None) -> Self:
        if max_seconds is not None and not max_seconds > 0:
            raise ValueError(f"max_seconds is {max_seconds}; it must be more than 0, or None for no limit")
        return cls(time.monotonic(), max_seconds)

    def spent(self) -> float:
        """The share of the time that is gone; 0 without a limit."""
        return 0.0 if self.max_seconds is None else (time.monotonic() - self.started) / self.max_seconds


@dataclass(frozen=True)
class Neighbours:
    """For each word, in order, the words on one side of it (not itself) and how often."""

    word: Ints
    neighbour: Ints
    count: Floats
    first: Ints
    """Entries of word w are first[w] to first[w + 1]."""

    @classmethod
    def build(cls, word: Ints, neighbour: Ints, count: Floats, num_words: int) -> Self:
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

    The first `num_movable` words move among the first `open_blocks` blocks; a word after them has the last block to itself.
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
        cyclic = np.arange(bigrams.vocab_size) % open_blocks
        cyclic[num_movable:] = open_blocks
        self.set_blocks(cyclic)

    def set_blocks(self, block_of_word: Ints) -> None:
        """Starts over from another partition."""
        num_blocks = int(block_of_word.max()) + 1
        self.num_blocks = num_blocks
        self.block_of_word = block_of_word.copy()
        self.joint = self.bigrams.joint(block_of_word, num_blocks)
        self.row_total = self.joint.sum(1)
        self.column_total = self.joint.sum(0)
        self.sizes = np.bincount(block_of_word, minlength=num_blocks)
        self._table: npt.NDArray[np.float32] | None = None

    @property
    def information(self) -> float:
        return information_of(self.joint)

    def objective(self) -> float:
        """F of the head of this file."""
        cells = n_log_n(self.joint).sum()
        return float(cells - n_log_n(self.row_total).sum() - n_log_n(self.column_total).sum())

    def gains(self, start: int, stop: int) -> Floats:
        """What F gains if one of the words start..stop moves, alone, to each open block: (words, open blocks)."""
        n, f = self.joint, n_log_n
        following = self.following.by_block(start, stop, self.block_of_word, self.num_blocks)
        preceding = self.preceding.by_block(start, stop, self.block_of_word, self.num_blocks)
        gain = self._gains_apart(following, preceding)

        # So far as if the word had been nowhere: its own bigrams must leave the row and the column of its block first.
        words = np.arange(stop - start)
        home = self.block_of_word[start:stop]
        into_home, from_home = n.T[home], n[home]
        to_home, after_home = following[words, home][:, None], preceding[words, home][:, None]
        f_into, f_from = f(into_home), f(from_home)
        f_into_less, f_from_less = f(into_home - preceding), f(from_home - following)
        gain += f(into_home - preceding + to_home) - f_into_less - f(into_home + to_home) + f_into
        gain += f(from_home - following + after_home) - f_from_less - f(from_home + after_home) + f_from

        # A cell of the diagonal is in a row and a column at once, and takes the word's bigrams with itself.
        diagonal = np.diagonal(n)
        alone = self.with_itself[start:stop, None]
        gain += f(diagonal + following + preceding + alone) - f(diagonal + following) - f(diagonal + preceding)
        gain += f(diagonal)

        as_left, as_right = self.as_left[start:stop, None], self.as_right[start:stop, None]
        gain += f(self.row_total) - f(self.row_total + as_left)
        gain += f(self.column_total) - f(self.column_total + as_right)

        leaving = f_from - f_from_less + f_into - f_into_less
        leaving[words, home] = 0
        loss = leaving.sum(1, keepdims=True)
        at_home = diagonal[home][:, None]
        loss += f(at_home) - f(at_home - to_home - after_home - alone)
        rows, columns = self.row_total[home][:, None], self.column_total[home][:, None]
        loss -= f(rows) - f(rows - as_left) + f(columns) - f(columns - as_right)
        gain -= loss
        gain[words, home] = 0
        return gain[:, : self.open_blocks]

    def _gains_apart(self, following: Floats, preceding: Floats) -> Floats:
        """sum_g f(n(b, g) + following(g)) - f(n(b, g)), and the same down the columns, for every word and block b."""
        num_blocks = self.num_blocks
        counts = np.concatenate([following, preceding], axis=1).ravel()
        cell = np.flatnonzero(counts)
        count = counts[cell]
        word, line = np.divmod(cell, 2 * num_blocks)
        gain = np.zeros((len(following), num_blocks))
        # The table pays when it serves many words before a move spoils it.
        small = count <= (TABULATED if len(following) > 8 else 0)
        if small.any():
            row = (count[small].astype(np.int64) - 1) * 2 * num_blocks + line[small]
            _add_rows(gain, word[small], self._increments()[row])
        large = ~small
        if large.any():
            # Row b of the transpose first: entry b of line g is n(b, g), that of line num_blocks + g is n(g, b).
            lines = np.concatenate([self.joint.T, self.joint])[line[large]]
            _add_rows(gain, word[large], n_log_n(lines + count[large, None]) - n_log_n(lines))
        return gain

    def _increments(self) -> npt.NDArray[np.float32]:
        """f(n + k) - f(n) for k = 1..TABULATED, by k, then line, then block."""
        if self._table is None:
            now = n_log_n(self.joint)
            table = np.empty((TABULATED, 2, self.num_blocks, self.num_blocks), np.float32)
            for k in range(TABULATED):
                table[k, 1] = n_log_n(self.joint + (k + 1)) - now
                table[k, 0] = table[k, 1].T
            self._table = table.reshape(-1, self.num_blocks)
        return self._table

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
        np.subtract.at(cells, block_of[left] * num_blocks + block_of[right], count)
        block_of[words] = blocks
        np.add.at(cells, block_of[left] * num_blocks + block_of[right], count)
        for total, of_word in ((self.row_total, self.as_left), (self.column_total, self.as_right)):
            np.subtract.at(total, old, of_word[words])
            np.add.at(total, blocks, of_word[words])
        self.sizes += np.bincount(blocks, minlength=num_blocks) - np.bincount(old, minlength=num_blocks)
        self._table = None

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
                np.searchsorted(cells, below[1] + MOST_CELLS, "right"),
                start + MOST_WORDS,
            )
            stop = max(int(stop), start + 1)
            stretches.append((start, stop))
            start = stop
        return stretches

    def occupied(self, words: Ints, blocks: Ints) -> npt.NDArray[np.bool_]:
        """Which of these moves can be made together without leaving a block empty."""
        keep = np.ones(len(words), bool)
        old = self.block_of_word[words]
        leaving = np.bincount(old, minlength=self.num_blocks)
        for block in np.flatnonzero((leaving > 0) & (leaving == self.sizes)):
            keep[np.argmax(old == block)] = False
        return keep


def refine_blocks(
    state: Exchange,
    generator: np.random.Generator,
    clock: Clock,
    progress: Callable[[int, int, str], None] | None,
) -> None:
    """Anneals, then climbs to where no single move helps. Never ends below where it began."""
    start, start_information = state.block_of_word.copy(), state.information
    total = SWEEPS + CLIMBS

    def report(done: int, stage: str) -> None:
        if progress is not None:
            progress(done, total, f"{stage}, {state.information:.4f} nats")

    report(0, "brown")
    batches = state.batches(MASS)
    common = [batch for batch in batches if batch[1] - batch[0] < MOST_WORDS] or batches
    # The more blocks, the less a word minds in which of them it is: found by trial at 64, 128 and 256 blocks.
    hottest = min(0.15, 7.5 / state.open_blocks)
    for sweep in range(SWEEPS):
        # Short of time, cool faster; a tenth of it is for the climb.
        done = max(sweep / SWEEPS, clock.spent() / 0.9)
        if done >= 1 or state.open_blocks == 1:
            break
        temperature = hottest * min(1.0, COLDEST / hottest) ** done
        anneal(state, temperature, batches if sweep % RARE_EVERY == 0 else common, generator)
        report(sweep + 1, "annealing")
    if state.information < start_information and clock.spent() >= 0.9:
        state.set_blocks(start)
    small_batches = state.batches(MASS / 8)
    for sweep in range(CLIMBS):
        moves = climb(state, small_batches, clock)
        report(SWEEPS + sweep + 1, "exchange")
        if not moves or clock.spent() >= 1:
            break
    if state.information < start_information:
        state.set_blocks(start)
    report(total, "done")


def anneal(state: Exchange, temperature: float, batches: list[tuple[int, int]], generator: np.random.Generator) -> None:
    """Draws a block for each word, with probability proportional to exp(gain / (temperature count)).

    A word's gain grows with its count. Were the temperature the same for all, the frequent words, which decide what the blocks
    are about, would be frozen while the rare ones still boil.
    """
    for start, stop in batches:
        gain = state.gains(start, stop)
        heat = temperature * (state.as_left + state.as_right)[start:stop, None]
        # The largest of these is a draw from the softmax (Gumbel); the small constant keeps the logarithm finite.
        noise = -np.log(generator.standard_exponential(gain.shape, np.float32) + 1e-30)
        target = np.argmax(gain / heat + noise, axis=1)
        moved = np.flatnonzero(target != state.block_of_word[start:stop])
        moved = moved[state.occupied(start + moved, target[moved])]
        if len(moved):
            state.move(start + moved, target[moved])


def climb(state: Exchange, batches: list[tuple[int, int]], clock: Clock) -> int:
    """Moves words to their best blocks as long as the information rises; returns the number of moves."""
    moves = 0
    objective = state.objective()
    for start, stop in batches:
        if clock.spent() >= 1:
            break
        gain = state.gains(start, stop)
        target = gain.argmax(1)
        gained = gain.max(1)
        moved = np.flatnonzero(gained > LEAST_GAIN)
        moved = moved[state.occupied(start + moved, target[moved])]
        if not len(moved):
            continue
        old = state.block_of_word[start + moved]
        state.move(start + moved, target[moved])
        if state.objective() <= objective:
            # Good moves can spoil each other. The best of them alone cannot go down.
            state.move(start + moved, old)
            moved = moved[[gained[moved].argmax()]]
            state.move(start + moved, target[moved])
        objective = state.objective()
        moves += len(moved)
    return moves


def _add_rows(total: Floats, index: Ints, rows: npt.NDArray[np.floating]) -> None:
    """total[index[i]] += rows[i], for a rising index."""
    first = np.flatnonzero(np.diff(index, prepend=-1))
    total[index[first]] += np.add.reduceat(rows, first, axis=0)
