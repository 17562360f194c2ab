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
    """All n-grams of one length with their back-off parameters, in sorted arrays.

    Words are 0 to X - 1, and X stands for `<s>`. The number of an n-gram is its index in the arrays. The context of length 0 has
    number 0.

    Example:
        >>> from vlhmm.data import Tokens
        >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], vocab_size=3)
        >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=2, order=2, fallback=(0.5, 1.0, 1.5))
        >>> unigrams, bigrams = model.orders
        >>> list(zip(bigrams.contexts.tolist(), bigrams.last_words.tolist()))
        [(0, 1), (1, 1), (1, 2), (3, 0), (3, 1)]
    """

    num_words: int
    """Size of the vocabulary, X."""
    keys: Ids
    """(X + 1) times the number of the context, which is the first n - 1 words, plus the last word; ascending."""
    log10_prob: Values
    """log10 p(last word | context)."""
    log10_backoff: Values
    """log10 of the back-off weight of this n-gram as a context."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def contexts(self) -> Ids:
        """The number of the context of each n-gram."""
        return self.keys // (self.num_words + 1)

    @property
    def last_words(self) -> Ids:
        """The last word of each n-gram."""
        return self.keys % (self.num_words + 1)

    def find(self, contexts: Ids, words: Ids) -> Ids:
        """Look up n-grams by context and last word.

        Args:
            contexts: Numbers of the contexts, -1 for a context that does not exist.
            words: Last words, of the same shape.

        Returns:
            Numbers of the n-grams, -1 where there is none.

        Example:
            >>> import numpy as np
            >>> from vlhmm.data import Tokens
            >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], vocab_size=3)
            >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=2, order=2, fallback=(0.5, 1.0, 1.5))
            >>> model.orders[1].find(np.array([0, 0]), np.array([1, 2])).tolist()
            [0, -1]
        """
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


def as_contexts(found: Ids, words: Ids, length: int, num_words: int, eos_id: int | None) -> Ids:
    """The n-grams that end at each position as contexts of the next; after EOS that is `<s>` and nothing longer."""
    return found if eos_id is None else np.where(words == eos_id, num_words if length == 1 else NOWHERE, found)
