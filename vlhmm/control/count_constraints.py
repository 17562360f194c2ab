"""Constraints on how many words or tokens a text has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from vlhmm.arguments import is_integer
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.operations import explore
from vlhmm.control.phrases import number_of_words
from vlhmm.control.token_texts import TokenTexts

# A count takes a state each.
MAX_COUNT: Final = 4_096


@final
@dataclass(frozen=True, repr=False)
class Words(Constraint):
    at_least: int
    at_most: int | None

    def __post_init__(self) -> None:
        _check_range("words", self.at_least, self.at_most)

    def __repr__(self) -> str:
        return f"words({self.at_least}, {self.at_most})"

    def over_bytes(self) -> Automaton:
        return number_of_words(self.at_least, self.at_most)


@final
@dataclass(frozen=True, repr=False)
class Length(Constraint):
    at_least: int
    at_most: int | None

    def __post_init__(self) -> None:
        _check_range("length", self.at_least, self.at_most)

    def __repr__(self) -> str:
        return f"length({self.at_least}, {self.at_most})"

    @property
    def about_tokens(self) -> bool:
        return True

    def over_bytes(self) -> Automaton:
        raise ValueError(f"{self} counts tokens, which the bytes of a text do not show; use over_tokens")

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        # The count saturates here: larger counts are equivalent.
        enough = self.at_least if self.at_most is None else self.at_most + 1
        return explore(
            0,
            lambda count: [min(count + 1, enough)],
            lambda count: self.at_least <= count and (self.at_most is None or count <= self.at_most),
            np.zeros(texts.num_tokens, dtype=np.int64),
        )


def words(at_least: int, at_most: int | None = None) -> Constraint:
    """Require that the text has between `at_least` and `at_most` words, separated by white space.

    Args:
        at_least: Smallest number of words.
        at_most: Largest number of words; None: no limit.

    Returns:
        The constraint.

    Raises:
        ValueError: The range is empty, or a number is above 4,096.

    Example:
        >>> vlhmm.words(5, 8)
        words(5, 8)
    """
    return Words(at_least, at_most)


def length(at_least: int, at_most: int | None = None) -> Constraint:
    """Require that the text has between `at_least` and `at_most` tokens, EOS not counted.

    Args:
        at_least: Smallest number of tokens.
        at_most: Largest number of tokens; None: no limit.

    Returns:
        The constraint.

    Raises:
        ValueError: The range is empty, or a number is above 4,096.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.length(8, 8), max_tokens=10).text
        'the cat sees a bird in the garden'
    """
    return Length(at_least, at_most)


def _check_range(name: str, at_least: int, at_most: int | None) -> None:
    for limit in (at_least, 0 if at_most is None else at_most):
        if not is_integer(limit):
            raise ValueError(f"{name}({at_least!r}, {at_most!r}) is no range; give integers, as in {name}(3, 5)")
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise ValueError(f"{name}({at_least}, {at_most}) is no range; give 0 <= at_least <= at_most")
    if max(at_least, at_most or 0) > MAX_COUNT:
        raise ValueError(f"{name}({at_least}, {at_most}) counts beyond {MAX_COUNT:,}; give smaller numbers")
