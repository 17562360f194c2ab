"""Constraints on the whole text: that a pattern matches it, or that it is one of several texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from vlhmm.arguments import check_text
from vlhmm.control import byte_parts
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.regex import check_pattern, pattern_automaton


@final
@dataclass(frozen=True, repr=False)
class Regex(Constraint):
    pattern: str
    strip: bool = False

    def __post_init__(self) -> None:
        check_text("the pattern of regex", self.pattern)
        if not isinstance(self.strip, bool):
            raise ValueError(f"strip is {self.strip!r}, but must be True or False")
        check_pattern(self.pattern)

    def __repr__(self) -> str:
        return f"regex({self.pattern!r}{', strip=True' * self.strip})"

    def over_bytes(self) -> Automaton:
        return pattern_automaton(self.pattern, strip=self.strip)


@final
@dataclass(frozen=True, repr=False)
class Choice(Constraint):
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.texts:
            raise ValueError("no text given to choose (0 texts); give at least one")
        for text in self.texts:
            check_text("a text of choice", text)
        object.__setattr__(self, "texts", tuple(dict.fromkeys(self.texts)))

    def __repr__(self) -> str:
        return f"choice({list(self.texts)!r})"

    def over_bytes(self) -> Automaton:
        return byte_parts.texts(self.texts)


def regex(pattern: str, *, strip: bool = False) -> Constraint:
    r"""Require that `re.fullmatch(pattern, text)` of Python matches.

    `\w` and `\d` are those of all Unicode. Over subwords that can spell single bytes, `(?a)` makes them ASCII and the automaton
    many times smaller. Subwords bring their own space: a pattern that continues a sentence begins with one.

    Args:
        pattern: A pattern without look-around, back-references and word boundaries.
        strip: White space at both ends of the text is ignored, as by `re.fullmatch(pattern, text.strip())`.

    Returns:
        The constraint.

    Raises:
        ValueError: The pattern is no regular expression, or uses what is not supported.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.regex("the (dog|bird) .* fish"), max_tokens=10).text
        'the dog sees a fish'
    """
    return Regex(pattern, strip)


def choice(texts: Sequence[str]) -> Constraint:
    """Require that the text is one of these, to the letter.

    Args:
        texts: The texts to choose from.

    Returns:
        The constraint.

    Raises:
        ValueError: There is no text to choose, or something else than texts is given.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.best_text(constraint=vlhmm.choice(["a bird", "the dog sees a fish"]), max_tokens=10).text
        'the dog sees a fish'
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise ValueError(
            f"choice is among {texts!r} ({type(texts).__name__}); give a list of texts, as in choice(['yes', 'no'])"
        )
    return Choice(tuple(texts))
