"""N-grams of one length as sorted numbers: a whole window of text is looked up at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

NOWHERE = -1
"""In place of an n-gram's number: there is no such n-gram."""


@dataclass(frozen=True, eq=False, repr=False)
class Ngrams:
    """All n-grams of one length, and what a back-off model says of them. Their numbers are their places here.

    Words are 0..X-1, and X is `<s>`. The one context of length 0 has number 0, so 1-grams are keyed as the others are.
    """

    num_words: int
    keys: Ids
    """(X + 1) times the number of the context, the first n - 1 words, plus the last word; rising."""
    log10_prob: Values
    """Of the last word given the context."""
    log10_backoff: Values
    """Added where this n-gram, as a context, was never seen before the word in question."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def contexts(self) -> Ids:
        return self.keys // (self.num_words + 1)

    @property
    def last_words(self) -> Ids:
        return self.keys % (self.num_words + 1)

    def find(self, contexts: Ids, words: Ids) -> Ids:
        """The numbers of the n-grams `context word`, NOWHERE where there is none or the context itself is nowhere."""
        if not len(self):
            return np.full(words.shape, NOWHERE)
        wanted = contexts * (self.num_words + 1) + words
        places = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        return np.where((contexts != NOWHERE) & (self.keys[places] == wanted), places, NOWHERE)


def values_or(values: Values, numbers: Ids, otherwise: Values) -> Values:
    """The values of the n-grams of these numbers, `otherwise` where they are nowhere."""
    chosen = otherwise.copy()
    there = numbers != NOWHERE
    chosen[there] = values[numbers[there]]
    return chosen
