"""Constraints on phrases: that they occur, together, in order, at an end of the text, or not at all.

A phrase is found as bytes, so it does not matter how a tokenizer cuts it. By default it is found as whole words only:
where it begins or ends with a word character, no other word character may stand beside it (`vlhmm.control.phrases`
says what these are). White space at both ends of a text is ignored by `starts_with` and `ends_with`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from vlhmm.arguments import check_text
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint, Not, all_of, any_of
from vlhmm.control.phrases import phrases_in_order


@final
@dataclass(frozen=True, repr=False)
class Phrases(Constraint):
    """Phrases one after the other, without overlap."""

    phrases: tuple[str, ...]
    whole_words: bool = True
    ignore_case: bool = False
    at_start: bool = False
    at_end: bool = False

    def __post_init__(self) -> None:
        if not self.phrases:
            raise ValueError("no phrase given (0 phrases); give at least one")
        for name, value in (("whole_words", self.whole_words), ("ignore_case", self.ignore_case)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}, but must be True or False")
        for phrase in self.phrases:
            check_text("a phrase (each is one text, as in contains_all('a', 'b'))", phrase)
            if not phrase:
                raise ValueError("a phrase is empty (0 characters), and every text contains it; give a longer one")
            if (self.at_start or self.at_end) and phrase != phrase.strip():
                raise ValueError(
                    f"the phrase {phrase!r} has white space at its ends, which is ignored at the ends of a text; "
                    f"write {phrase.strip()!r}"
                )

    def __repr__(self) -> str:
        return self._written("contains" if len(self.phrases) == 1 else "in_order")

    def _negated(self) -> str:
        if len(self.phrases) == 1 and not self.at_start and not self.at_end:
            return self._written("excludes")
        return super()._negated()

    def _written(self, name: str) -> str:
        name = "starts_with" if self.at_start else "ends_with" if self.at_end else name
        arguments = [repr(phrase) for phrase in self.phrases]
        arguments += ["whole_words=False"] * (not self.whole_words) + ["ignore_case=True"] * self.ignore_case
        return f"{name}({', '.join(arguments)})"

    def over_bytes(self) -> Automaton:
        return phrases_in_order(
            self.phrases,
            whole_words=self.whole_words,
            ignore_case=self.ignore_case,
            at_start=self.at_start,
            at_end=self.at_end,
        )


def contains(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that the phrase occurs.

    Args:
        phrase: The phrase.
        whole_words: It must not be a part of longer words. Without it "loss" also occurs in "glossary".
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: The phrase is empty.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> round(lm.constraint_probability("the cat", vlhmm.contains("garden"), length=9, until_eos=True), 1)
        0.4
    """
    return Phrases((phrase,), whole_words, ignore_case)


def contains_all(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that every phrase occurs, in any order; they may overlap.

    Args:
        *phrases: The phrases.
        whole_words: They must not be parts of longer words.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: There is no phrase, or one is empty.

    Example:
        >>> vlhmm.contains_all("garden", "cat")
        contains('garden') & contains('cat')
    """
    return all_of(Phrases((phrase,), whole_words, ignore_case) for phrase in phrases)


def contains_any(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that at least one of the phrases occurs.

    Args:
        *phrases: The phrases.
        whole_words: They must not be parts of longer words.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: There is no phrase, or one is empty.

    Example:
        >>> vlhmm.contains_any("bird", "fish")
        contains('bird') | contains('fish')
    """
    return any_of(Phrases((phrase,), whole_words, ignore_case) for phrase in phrases)


def in_order(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that the phrases occur in this order, without overlap.

    Args:
        *phrases: The phrases.
        whole_words: They must not be parts of longer words.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: There is no phrase, or one is empty.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.in_order("dog", "fish", "garden"), max_tokens=10).text
        'the dog sees a fish in the garden'
    """
    return Phrases(phrases, whole_words, ignore_case)


def excludes(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that none of the phrases occurs.

    Args:
        *phrases: The phrases.
        whole_words: An occurrence inside a longer word is allowed.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: There is no phrase, or one is empty.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text("the", constraint=vlhmm.excludes("cat", "bird"), max_tokens=10).text
        'the dog sees a fish'
    """
    return all_of(Not(Phrases((phrase,), whole_words, ignore_case)) for phrase in phrases)


def starts_with(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that the text starts with the phrase; white space before it is ignored.

    Args:
        phrase: The phrase.
        whole_words: It must not be a part of a longer word.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: The phrase is empty, or has white space at its ends.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.starts_with("the dog"), max_tokens=10).text
        'the dog sees a bird'
    """
    return Phrases((phrase,), whole_words, ignore_case, at_start=True)


def ends_with(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Require that the text ends with the phrase; white space after it is ignored.

    Args:
        phrase: The phrase.
        whole_words: It must not be a part of a longer word.
        ignore_case: Upper and lower case are equal.

    Returns:
        The constraint.

    Raises:
        ValueError: The phrase is empty, or has white space at its ends.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.ends_with("a fish"), max_tokens=10).text
        'the cat sees a fish'
    """
    return Phrases((phrase,), whole_words, ignore_case, at_end=True)
