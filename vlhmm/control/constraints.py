"""What a text must be, as objects that one combines with `&`, `|` and `~`.

A phrase is found as bytes, so it does not matter how a tokenizer cuts it. By default it is found as whole words only:
where it begins or ends with a word character, no other word character may stand beside it (`vlhmm.control.phrases`
says what these are). White space is that of ASCII; at both ends of a text `regex`, `starts_with` and `ends_with` ignore it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from vlhmm.arguments import check_text, is_integer
from vlhmm.control.automaton import Automaton
from vlhmm.control.operations import complement, explore, intersection, union
from vlhmm.control.phrases import number_of_words, phrases_in_order
from vlhmm.control.regex import check_pattern, pattern_automaton
from vlhmm.control.token_texts import HuggingFaceTokenizer, TokenTexts
from vlhmm.data import Tokenizer

# A count takes a state each.
MAX_COUNT: Final = 4_096


class Constraint(ABC):
    """A set of texts. Frozen and hashable; `repr` is how one writes it."""

    def __and__(self, other: Constraint) -> Constraint:
        return all_of([self, other])

    def __or__(self, other: Constraint) -> Constraint:
        return any_of([self, other])

    def __invert__(self) -> Constraint:
        return Not(self)

    def parts(self) -> tuple[Constraint, ...]:
        """The constraints that must all hold; one for everything but a conjunction."""
        return (self,)

    def compile(self, tokenizer: Tokenizer | HuggingFaceTokenizer | TokenTexts) -> Automaton:
        """The minimal automaton of the token sequences whose text is in the set.

        Tokens without text (EOS, padding, special symbols) lead to a dead state: `Automaton.ending_at` is how a text ends.
        """
        texts = TokenTexts.of(tokenizer)
        return texts.text_only(self.over_tokens(texts))

    @property
    def about_tokens(self) -> bool:
        """Whether the tokens matter, and not the text alone."""
        return False

    @abstractmethod
    def over_bytes(self) -> Automaton:
        """The automaton over the text's bytes, for a constraint that is not about tokens."""

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        """The automaton over tokens; a token without text adds none to it."""
        return texts.lift(self.over_bytes())


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
        return self.written("contains" if len(self.phrases) == 1 else "in_order")

    def written(self, name: str) -> str:
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
        # Beyond this number counting on changes nothing.
        enough = self.at_least if self.at_most is None else self.at_most + 1
        return explore(
            0,
            lambda count, _: min(count + 1, enough),
            lambda count: self.at_least <= count and (self.at_most is None or count <= self.at_most),
            np.zeros(texts.num_tokens, dtype=np.int64),
        )


@final
@dataclass(frozen=True, repr=False)
class Regex(Constraint):
    pattern: str

    def __post_init__(self) -> None:
        check_text("the pattern of regex", self.pattern)
        check_pattern(self.pattern)

    def __repr__(self) -> str:
        return f"regex({self.pattern!r})"

    def over_bytes(self) -> Automaton:
        return pattern_automaton(self.pattern)


@final
@dataclass(frozen=True, repr=False)
class AllOf(Constraint):
    constraints: tuple[Constraint, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({part})" if isinstance(part, AnyOf) else repr(part) for part in self.constraints)

    def parts(self) -> tuple[Constraint, ...]:
        return self.constraints

    @property
    def about_tokens(self) -> bool:
        return any(part.about_tokens for part in self.constraints)

    def over_bytes(self) -> Automaton:
        return intersection([part.over_bytes() for part in self.constraints])

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        return _combined(self.constraints, texts, intersection)


@final
@dataclass(frozen=True, repr=False)
class AnyOf(Constraint):
    constraints: tuple[Constraint, ...]

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.constraints))

    @property
    def about_tokens(self) -> bool:
        return any(part.about_tokens for part in self.constraints)

    def over_bytes(self) -> Automaton:
        return union([part.over_bytes() for part in self.constraints])

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        return _combined(self.constraints, texts, union)


@final
@dataclass(frozen=True, repr=False)
class Not(Constraint):
    constraint: Constraint

    def __repr__(self) -> str:
        match self.constraint:
            case Phrases(phrases=(_,), at_start=False, at_end=False):
                return self.constraint.written("excludes")
            case AllOf() | AnyOf():
                return f"~({self.constraint})"
            case _:
                return f"~{self.constraint}"

    def __invert__(self) -> Constraint:
        return self.constraint

    @property
    def about_tokens(self) -> bool:
        return self.constraint.about_tokens

    def over_bytes(self) -> Automaton:
        return complement(self.constraint.over_bytes())

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        return complement(self.constraint.over_tokens(texts))


def all_of(constraints: Iterable[Constraint]) -> Constraint:
    """All of them hold, as `&` of one after the other."""
    parts = tuple(part for constraint in constraints for part in check_constraint(constraint).parts())
    if not parts:
        raise ValueError("no constraint given (0 parts); give at least one")
    return parts[0] if len(parts) == 1 else AllOf(parts)


def any_of(constraints: Iterable[Constraint]) -> Constraint:
    """Some of them hold, as `|` of one after the other."""
    checked = map(check_constraint, constraints)
    parts = tuple(part for one in checked for part in (one.constraints if isinstance(one, AnyOf) else (one,)))
    if not parts:
        raise ValueError("no constraint given (0 parts); give at least one")
    return parts[0] if len(parts) == 1 else AnyOf(parts)


def contains(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """The phrase occurs, as whole words; with `whole_words=False` inside words too ("loss" in "glossary")."""
    return Phrases((phrase,), whole_words, ignore_case)


def contains_all(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """Every phrase occurs, in any order; they may overlap."""
    return all_of(Phrases((phrase,), whole_words, ignore_case) for phrase in phrases)


def contains_any(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """At least one of the phrases occurs."""
    return any_of(Phrases((phrase,), whole_words, ignore_case) for phrase in phrases)


def in_order(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """The phrases occur one after the other, without overlap."""
    return Phrases(phrases, whole_words, ignore_case)


def excludes(*phrases: str, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """None of the phrases occurs."""
    return all_of(Not(Phrases((phrase,), whole_words, ignore_case)) for phrase in phrases)


def starts_with(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """The text begins with the phrase, white space aside."""
    return Phrases((phrase,), whole_words, ignore_case, at_start=True)


def ends_with(phrase: str, *, whole_words: bool = True, ignore_case: bool = False) -> Constraint:
    """The text ends with the phrase, white space aside."""
    return Phrases((phrase,), whole_words, ignore_case, at_end=True)


def words(at_least: int, at_most: int | None = None) -> Constraint:
    """The text has so many words, which white space separates; no upper limit where None."""
    return Words(at_least, at_most)


def length(at_least: int, at_most: int | None = None) -> Constraint:
    """The text has so many tokens, EOS not counted; no upper limit where None."""
    return Length(at_least, at_most)


def regex(pattern: str) -> Constraint:
    """Python's `re.fullmatch(pattern, text.strip())`.

    No look-around, no references, no word boundaries. `\\w` and `\\d` are those of all Unicode; over subwords that
    can spell single bytes, `(?a)` makes them ASCII and the automaton many times smaller.
    """
    return Regex(pattern)


def _combined(
    parts: tuple[Constraint, ...], texts: TokenTexts, combine: Callable[[list[Automaton]], Automaton]
) -> Automaton:
    """Text first: products over bytes are smaller, and lifted once."""
    of_text = [part.over_bytes() for part in parts if not part.about_tokens]
    of_tokens = [part.over_tokens(texts) for part in parts if part.about_tokens]
    lifted = [texts.lift(combine(of_text))] if of_text else []
    return combine([*lifted, *of_tokens])


def check_constraint(constraint: Any) -> Constraint:
    """`constraint` if it is one; a text is not."""
    if not isinstance(constraint, Constraint):
        hint = f": write contains({constraint!r})" if isinstance(constraint, str) else ""
        raise ValueError(f"{constraint!r} ({type(constraint).__name__}) is no constraint{hint}")
    return constraint


def _check_range(name: str, at_least: int, at_most: int | None) -> None:
    for limit in (at_least, 0 if at_most is None else at_most):
        if not is_integer(limit):
            raise ValueError(f"{name}({at_least!r}, {at_most!r}) is no range; give integers, as in {name}(3, 5)")
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise ValueError(f"{name}({at_least}, {at_most}) is no range; give 0 <= at_least <= at_most")
    if max(at_least, at_most or 0) > MAX_COUNT:
        raise ValueError(f"{name}({at_least}, {at_most}) counts beyond {MAX_COUNT:,}; give smaller numbers")
