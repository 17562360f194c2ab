"""Counts of adjacent words, and the information that blocks keep of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vlhmm.distributed import ALONE, World, gather_when_done, shard

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Tokens counted at a time: bounds the memory for a corpus that is memory-mapped.
CHUNK = 1 << 23


Eos = Literal["own", "word", "last", "none"]
"""What becomes of the end-of-line token, see `vlhmm.brown_clusters`."""


@runtime_checkable
class HasIds(Protocol):
    """A corpus split, `vlhmm.data.Tokens` for one."""

    @property
    def ids(self) -> Any:
        """An array, or what is read as one."""
        ...


TokenSource = HasIds | npt.NDArray[Any] | Sequence[int]


@dataclass(frozen=True, eq=False)
class Bigrams:
    """How often word `left[i]` is followed by `right[i]`; each pair at most once."""

    left: Ints
    right: Ints
    count: Floats
    """Whole numbers, as floats because logarithms are taken of their sums."""
    vocab_size: int

    @cached_property
    def count_as_left(self) -> Floats:
        return sum_by(self.left, self.count, self.vocab_size)

    @cached_property
    def count_as_right(self) -> Floats:
        return sum_by(self.right, self.count, self.vocab_size)

    def joint(self, group_of_word: Ints, num_groups: int) -> Floats:
        """How often a word of group a is followed by one of group b, (a, b)."""
        cell = group_of_word[self.left] * num_groups + group_of_word[self.right]
        return sum_by(cell, self.count, num_groups**2).reshape(num_groups, num_groups)

    def select(self, words: Ints) -> "Bigrams":
        """The same counts among `words`, which are renamed 0, 1, ... in the order given."""
        new_name = np.full(self.vocab_size, -1, np.int64)
        new_name[words] = np.arange(len(words))
        left, right = new_name[self.left], new_name[self.right]
        kept = (left >= 0) & (right >= 0)
        return Bigrams(left[kept], right[kept], self.count[kept], len(words))


def count_bigrams(
    tokens: TokenSource,
    *,
    eos: Eos = "own",
    eos_id: int | None = None,
    vocab_size: int | None = None,
    here: World = ALONE,
) -> Bigrams:
    """How often each pair of tokens is adjacent. Ranks share the text, and have all counts.

    No pair joins the last word of a line to the first of the next: where `eos` is own or word, EOS stands between them
    and is counted with both; where it is last or none, EOS is left out and the pairs end with the line.
    """
    ids = flat_ids(tokens)
    size = _vocab_size(ids, eos_id, vocab_size)
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in shard(range(0, max(len(ids) - 1, 0), CHUNK), here):
        chunk = np.asarray(ids[start : start + CHUNK + 1], np.int64)
        left, right = chunk[:-1], chunk[1:]
        if eos in ("last", "none") and eos_id is not None:
            inside = (left != eos_id) & (right != eos_id)
            left, right = left[inside], right[inside]
        keys, counts = _merged(keys, counts, *np.unique(left * size + right, return_counts=True))
    parts = gather_when_done((keys, counts), here, "counting bigrams")
    keys, counts = parts[0]
    for part in parts[1:]:
        keys, counts = _merged(keys, counts, *part)
    return Bigrams(keys // size, keys % size, counts.astype(np.float64), size)


def _merged(keys: Ints, counts: Ints, more_keys: Ints, more_counts: Ints) -> tuple[Ints, Ints]:
    both, position = np.unique(np.concatenate([keys, more_keys]), return_inverse=True)
    return both, np.bincount(position, np.concatenate([counts, more_counts]), len(both)).astype(np.int64)


def mutual_information(
    source: Bigrams | TokenSource, block_of_word: Ints, *, eos: Eos = "own", eos_id: int | None = None
) -> float:
    """sum over blocks a, b of p(a, b) log p(a, b) / (p(a, .) p(., b)), in nats; all three from the bigrams.

    It is 0 where there are none.
    `eos` and `eos_id` say how tokens become bigrams (see `count_bigrams`); ready-made bigrams ignore them.
    """
    block_of_word = np.asarray(block_of_word)
    if isinstance(source, Bigrams):
        bigrams = source
    else:
        bigrams = count_bigrams(source, eos=eos, eos_id=eos_id, vocab_size=len(block_of_word))
    if len(block_of_word) != bigrams.vocab_size:
        raise ValueError(
            f"{len(block_of_word)} words have a block, the bigrams are over {bigrams.vocab_size}; give one block a word"
        )
    return information_of(bigrams.joint(block_of_word, int(block_of_word.max()) + 1))


def information_of(joint: Floats) -> float:
    """Mutual information, in nats, of the row and the column of a table of counts."""
    total = float(joint.sum())
    if total == 0:
        return 0.0
    unnormalised = n_log_n(joint).sum() - n_log_n(joint.sum(0)).sum() - n_log_n(joint.sum(1)).sum()
    return max(0.0, float(unnormalised / total + np.log(total)))


def n_log_n(count: Floats) -> Floats:
    """n log n, which is 0 at n = 0; n is a whole number."""
    return np.asarray(count * np.log(np.maximum(count, 1.0)))


def sum_by(index: Ints, value: Floats, size: int) -> Floats:
    """out[i] = the sum of the values whose index is i."""
    return np.asarray(np.bincount(index, value, size), np.float64)


def word_counts(tokens: TokenSource, vocab_size: int) -> Ints:
    """How often each word occurs."""
    ids = flat_ids(tokens)
    _vocab_size(ids, None, vocab_size)
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(ids), CHUNK):
        counts += np.bincount(np.asarray(ids[start : start + CHUNK], np.int64), minlength=vocab_size)
    return counts


def flat_ids(tokens: TokenSource) -> Any:
    """The ids of a split or an array, checked to be one row of integers; never copied from memory maps."""
    ids = tokens.ids if isinstance(tokens, HasIds) else np.asarray(tokens)
    if ids.ndim != 1 or (ids.dtype.kind not in "ui" and len(ids)):
        raise ValueError(f"tokens must be one row of integers, not {ids.dtype} of shape {ids.shape}")
    return ids


def _vocab_size(ids: Any, eos_id: int | None, vocab_size: int | None) -> int:
    least, most = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    if vocab_size is None:
        vocab_size = max(most, -1 if eos_id is None else eos_id) + 1
    if least < 0 or most >= vocab_size:
        raise ValueError(f"token ids from {least} to {most}; the vocabulary is 0..{vocab_size - 1}")
    if vocab_size < 1:
        raise ValueError("no tokens and no vocab_size: there are no words to put into blocks")
    if eos_id is not None and not 0 <= eos_id < vocab_size:
        raise ValueError(f"eos_id {eos_id} is outside the vocabulary 0..{vocab_size - 1}")
    return vocab_size
