"""N-grams counted and estimated on disk: the same numbers as in memory, with memory for a part of the text at a time.

N-grams are numbered as in `Ngrams`. For each length, the keys at the positions of the text are sorted a part at a time and written
as runs; runs are merged a range of keys at a time, which gives each key its number, and each run the numbers of its own keys. A
second pass over the text then knows the number of the n-gram at each position, from which the next length begins.

All is read and written in order, but for two arrays with a value for each n-gram of a length: the counts of words to the left, and
the probabilities of the next shorter n-grams. They are mapped files, which the operating system keeps in memory as far as it can.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlhmm.baselines.ngrams import NOWHERE, Ids, Ngrams, Values, as_contexts
from vlhmm.data.joined import JoinedIds

PART = 1 << 22
"""Positions of the text, or n-grams, that are in memory at a time. About 100 bytes each are held at the peak."""
DISK_BYTES = 40, 64
"""Written for every n-gram and length, and for every token at the peak."""


class Column:
    """Values in a file without a name, which is gone when nothing refers to it."""

    def __init__(self, folder: Path, dtype: type[np.generic]) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._dtype = np.dtype(dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, values: npt.NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)

    def mapped(self) -> npt.NDArray[Any]:
        """Ends the column: its values, which can be changed. The file stays as long as they."""
        # The map keeps a descriptor of its own.
        with self._file as file:
            file.flush()
            if not self._length:
                return np.empty(0, self._dtype)
            return np.memmap(file, self._dtype, "r+", shape=(self._length,))


@dataclass(frozen=True, eq=False)
class CountedOnDisk:
    """N-grams of one length."""

    keys: Ids
    suffixes: Ids
    """The number of each n-gram without its first word."""
    counts: Ids
    """Adjusted, as Kneser-Ney takes them."""


def require_disk(num_tokens: int, order: int, folder: Path) -> None:
    """Refuses what may not fit in `folder`: as if no n-gram came twice."""
    per_ngram, per_token = DISK_BYTES
    needed, free = num_tokens * (per_ngram * order + per_token), shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"counting {order}-grams of {num_tokens:,} tokens may write up to {needed / 2**30:,.1f} GiB, but {free / 2**30:,.1f} "
            f"GiB are free in {folder}: name another folder with disk=, or take a lower order or less text"
        )


def count_on_disk(
    words: npt.NDArray[Any] | JoinedIds,
    num_words: int,
    eos_id: int | None,
    order: int,
    folder: Path,
    part: int = PART,
) -> list[CountedOnDisk]:
    """All n-grams up to a length.

    Args:
        words: The text, which may be mapped.
        num_words: Size of the vocabulary, X, which stands for `<s>`.
        eos_id: After this token a sentence begins; None: nowhere.
        order: The longest n-grams.
        folder: Where files without names are made.
        part: Positions that are in memory at a time.
    """
    counts = np.zeros(num_words + 1, np.int64)
    for first, last in _parts(len(words), part):
        counts += np.bincount(words[first:last], minlength=num_words + 1)
    unigrams = np.arange(num_words + 1)
    grams = CountedOnDisk(unigrams, np.zeros_like(unigrams), counts)
    begins_with_bos: npt.NDArray[Any] = unigrams == num_words
    numbers: npt.NDArray[Any] | JoinedIds = words
    counted = []
    for length in range(1, order):
        longer, numbers = _merged(_sorted_runs(words, numbers, length, num_words, eos_id, folder, part), folder, part)
        counted.append(_adjusted(grams, begins_with_bos, longer, folder, part))
        begins_with_bos = _of_contexts(begins_with_bos, longer.keys, num_words, folder, part)
        grams = longer
    return [*counted, grams]


@dataclass(frozen=True, eq=False)
class _Runs:
    """The n-grams of each part of the text, sorted by part."""

    begins: list[int]
    """Where each run begins, and the length of all."""
    keys: Ids
    counts: Ids
    suffixes: Ids
    places: npt.NDArray[np.int32]
    """For each position of the text the index of its n-gram in the run of its part, NOWHERE for none."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise(self.begins))


def _sorted_runs(
    words: npt.NDArray[Any] | JoinedIds,
    numbers: npt.NDArray[Any] | JoinedIds,
    length: int,
    num_words: int,
    eos_id: int | None,
    folder: Path,
    part: int,
) -> _Runs:
    """The n-grams one word longer than those of `numbers`, which stand at the positions of the text."""
    columns = [Column(folder, np.int64) for _ in range(3)]
    all_places, begins = Column(folder, np.int32), [0]
    before = np.array([num_words if length == 1 else NOWHERE])
    for first, last in _parts(len(words), part):
        here, ends = words[first:last].astype(np.int64), numbers[first:last].astype(np.int64)
        contexts = np.concatenate([before, as_contexts(ends, here, length, num_words, eos_id)])
        before, contexts = contexts[-1:], contexts[:-1]
        # Near the beginning of a sentence there are only shorter n-grams.
        there = contexts != NOWHERE
        keys, inverse, counts = np.unique(
            (contexts * (num_words + 1) + here)[there], return_inverse=True, return_counts=True
        )
        suffixes = np.empty_like(keys)
        suffixes[inverse] = ends[there]
        places = np.full(len(here), NOWHERE)
        places[there] = inverse
        for column, values in zip((*columns, all_places), (keys, counts, suffixes, places), strict=True):
            column.append(values)
        begins.append(len(columns[0]))
    return _Runs(begins, *(column.mapped() for column in (*columns, all_places)))


def _merged(runs: _Runs, folder: Path, part: int) -> tuple[CountedOnDisk, npt.NDArray[Any]]:
    """All n-grams of the runs in one order, and the number of that at each position of the text."""
    keys, counts, suffixes = (Column(folder, np.int64) for _ in range(3))
    number_of = _filled(folder, np.int64, 0.0, len(runs.keys), part)
    for taken in _ranges(runs, part):

        def of_range(values: Ids, taken: list[tuple[int, int]] = taken) -> Ids:
            return np.concatenate([values[begin:end] for begin, end in taken])

        found, inverse = np.unique(of_range(runs.keys), return_inverse=True)
        total = np.zeros(len(found), np.int64)
        np.add.at(total, inverse, of_range(runs.counts))
        suffix = np.empty_like(found)
        suffix[inverse] = of_range(runs.suffixes)
        numbers, done = inverse + len(keys), 0
        for begin, end in taken:
            number_of[begin:end] = numbers[done : done + end - begin]
            done += end - begin
        for column, values in ((keys, found), (counts, total), (suffixes, suffix)):
            column.append(values)
    at_positions = Column(folder, np.int64)
    for (first, last), (begin, end) in zip(_parts(len(runs.places), part), runs.spans, strict=True):
        # The last one stands for none.
        at_positions.append(np.append(number_of[begin:end], NOWHERE)[runs.places[first:last]])
    return CountedOnDisk(keys.mapped(), suffixes.mapped(), counts.mapped()), at_positions.mapped()


def _ranges(runs: _Runs, part: int) -> Iterator[list[tuple[int, int]]]:
    """The spans of each run whose keys lie in one range; a range has about `part` keys of all runs together."""
    spans = runs.spans
    stride = max(1, part // (4 * len(spans)))
    samples = np.sort(np.concatenate([runs.keys[begin:end:stride] for begin, end in spans]))
    # Between two of these lie so many samples, so at most that many strides and one more of each run.
    splits = np.unique(samples[:: max(1, part // (2 * stride))])[1:]
    ends = [[begin, *(begin + np.searchsorted(runs.keys[begin:end], splits)).tolist(), end] for begin, end in spans]
    for index in range(len(splits) + 1):
        yield [(of_run[index], of_run[index + 1]) for of_run in ends]


def _adjusted(
    grams: CountedOnDisk, begins_with_bos: npt.NDArray[Any], longer: CountedOnDisk, folder: Path, part: int
) -> CountedOnDisk:
    """Counts become the number of different words to the left, but for n-grams that begin with `<s>`."""
    to_the_left = _filled(folder, np.int64, 0.0, len(grams.keys), part)
    for first, last in _parts(len(longer.keys), part):
        np.add.at(to_the_left, longer.suffixes[first:last], 1)
    for first, last in _parts(len(grams.keys), part):
        own = begins_with_bos[first:last].astype(bool)
        to_the_left[first:last][own] = grams.counts[first:last][own]
    return CountedOnDisk(grams.keys, grams.suffixes, to_the_left)


def _of_contexts(values: npt.NDArray[Any], keys: Ids, num_words: int, folder: Path, part: int) -> npt.NDArray[Any]:
    column = Column(folder, np.uint8)
    for first, last in _parts(len(keys), part):
        column.append(values[keys[first:last] // (num_words + 1)])
    return column.mapped()


def times_counted(counts: Ids, part: int = PART) -> tuple[int, int, int, int]:
    """How many n-grams have an adjusted count of 1, 2, 3 and 4."""
    found = np.zeros(5, np.int64)
    for first, last in _parts(len(counts), part):
        found += np.bincount(counts[first:last].clip(max=5), minlength=6)[:5]
    one, two, three, four = (int(count) for count in found[1:])
    return one, two, three, four


def interpolate_on_disk(
    counted: list[CountedOnDisk],
    discounts: list[tuple[float, float, float]],
    num_words: int,
    folder: Path,
    part: int = PART,
) -> tuple[Ngrams, ...]:
    """Probabilities and back-off weights from counts and discounts, in mapped files."""
    probs: list[Values] = []
    backoffs: list[Values] = []
    shorter: Values = np.array([1 / num_words])
    for grams, amounts in zip(counted, discounts, strict=True):
        discount = np.array([0, *amounts])
        # A context that nothing was seen after passes everything on.
        backoff = _filled(folder, np.float64, 1.0, len(shorter), part)
        prob = Column(folder, np.float64)
        for first, last in _whole_contexts(grams.keys, num_words, part):
            contexts, counts = grams.keys[first:last] // (num_words + 1), grams.counts[first:last]
            begin, own = int(contexts[0]), contexts - contexts[0]
            taken = discount[counts.clip(max=3)]
            total = np.bincount(own, counts)
            passed = np.bincount(own, taken)
            gamma = np.divide(passed, total, out=np.ones(len(total)), where=total > 0)
            backoff[begin : begin + len(gamma)] = gamma
            prob.append((counts - taken) / total[own] + gamma[own] * shorter[grams.suffixes[first:last]])
        backoffs.append(backoff)
        probs.append(prob.mapped())
        shorter = probs[-1]
    # <s> is given, never predicted; lmplz writes it so.
    probs[0][num_words] = 1
    for values in (*probs, *backoffs):
        for first, last in _parts(len(values), part):
            values[first:last] = np.log10(values[first:last])
    for values in probs:
        for first, last in _parts(len(values), part):
            values[first:last] = values[first:last].clip(max=0)
    # Nothing is longer than the longest; the first entry is of the empty context, which no file has.
    nothing = np.broadcast_to(np.zeros(1), len(counted[-1].keys))
    return tuple(
        Ngrams(num_words, grams.keys, prob, backoff)
        for grams, prob, backoff in zip(counted, probs, [*backoffs[1:], nothing], strict=True)
    )


def _filled(folder: Path, dtype: type[np.generic], value: float, length: int, part: int) -> npt.NDArray[Any]:
    column = Column(folder, dtype)
    for first, last in _parts(length, part):
        column.append(np.full(last - first, value, dtype))
    return column.mapped()


def _parts(length: int, part: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, part):
        yield first, min(length, first + part)


def _whole_contexts(keys: Ids, num_words: int, part: int) -> Iterator[tuple[int, int]]:
    """Parts that end where a context does: at most one vocabulary longer."""
    first = 0
    while first < len(keys):
        last = min(len(keys), first + part)
        if last < len(keys):
            last = int(np.searchsorted(keys, (keys[last - 1] // (num_words + 1) + 1) * (num_words + 1)))
        yield first, last
        first = last
