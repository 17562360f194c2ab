"""What a text must be, as objects that one combines with `&`, `|` and `~`.

A phrase is found as bytes, so it does not matter how a tokenizer cuts it. By default it is found as whole words only:
where it begins or ends with a word character, no other word character may stand beside it (`vlhmm.control.phrases`
says what these are). White space is that of ASCII; at both ends of a text `starts_with` and `ends_with`
ignore it, and `regex` where it is told to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from vlhmm.arguments import check_text, is_integer
from vlhmm.control import byte_parts
from vlhmm.control.automaton import Automaton
from vlhmm.control.operations import MAX_STATES, TooManyStates, complement, explore, intersection, union
from vlhmm.control.phrases import number_of_words, phrases_in_order
from vlhmm.control.regex import check_pattern, pattern_automaton
from vlhmm.control.time_limit import TIME_LIMIT, check_time, limited_to
from vlhmm.control.token_texts import HuggingFaceTokenizer, TokenTexts
from vlhmm.data import Tokenizer

# A count takes a state each.
MAX_COUNT: Final = 4_096


class Constraint(ABC):
    """A set of texts; `&`, `|` and `~` combine constraints.

    Constraints are immutable and hashable. `repr` shows the calls that make one. The functions `contains`, `contains_all`,
    `contains_any`, `in_order`, `excludes`, `starts_with`, `ends_with`, `words`, `length`, `regex`, `choice` and `json_schema` make
    them.

    Example:
        >>> constraint = vlhmm.contains("garden") & ~vlhmm.starts_with("the")
        >>> constraint
        contains('garden') & ~starts_with('the')
        >>> lm = vlhmm.load("demo-model")
        >>> automaton = constraint.compile(lm.tokenizer)
        >>> automaton.accepts(lm.tokenizer.encode("a bird in the garden"))
        True
    """

    def __and__(self, other: Constraint) -> Constraint:
        return all_of([self, other])

    def __or__(self, other: Constraint) -> Constraint:
        return any_of([self, other])

    def __invert__(self) -> Constraint:
        return Not(self)

    def parts(self) -> tuple[Constraint, ...]:
        """Return the constraints that must all hold.

        Returns:
            The operands of a conjunction; for any other constraint, itself alone.

        Example:
            >>> (vlhmm.contains("garden") & vlhmm.words(5, 8)).parts()
            (contains('garden'), words(5, 8))
        """
        return (self,)

    def compile(
        self,
        tokenizer: Tokenizer | HuggingFaceTokenizer | TokenTexts,
        *,
        time_limit: float | None = TIME_LIMIT,
    ) -> Automaton:
        """Compile to the minimal automaton of the token sequences whose text is in the set.

        A token without text (EOS, padding, special symbols) leads to a dead state. `Automaton.ending_at` adds EOS.

        Args:
            tokenizer: A `vlhmm.Tokenizer`, a tokenizer of transformers, or the texts of the tokens.
            time_limit: Seconds of CPU time that this may take; None: any time.

        Returns:
            The automaton over token ids.

        Raises:
            ValueError: The texts of the tokens cannot be read from this kind of tokenizer, the automaton has too many states, or
                the time limit is exceeded.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> automaton = vlhmm.contains("in the garden").compile(lm.tokenizer)
            >>> automaton.num_states, automaton.num_tokens
            (5, 12)
        """
        with limited_to(time_limit):
            check_time("automaton states found", 0)
            texts = TokenTexts.of(tokenizer)
            automaton = texts.text_only(self.over_tokens(texts.spelt()))
        if automaton.num_states > MAX_STATES:
            raise TooManyStates(MAX_STATES, automaton.num_states)
        return automaton

    @property
    def about_tokens(self) -> bool:
        """Whether the constraint counts tokens, so that the text alone does not decide it."""
        return False

    @abstractmethod
    def over_bytes(self) -> Automaton:
        """Compile to an automaton over the UTF-8 bytes of the text.

        Returns:
            The automaton; its symbols are the bytes 0 to 255.

        Raises:
            ValueError: The constraint counts tokens.

        Example:
            >>> vlhmm.contains("cat").over_bytes().accepts(b"the cat sees a bird")
            True
        """

    def over_tokens(self, texts: TokenTexts) -> Automaton:
        """Compile to an automaton over tokens in which a token without text changes nothing.

        Args:
            texts: The texts of the tokens, `TokenTexts.of(tokenizer)`.

        Returns:
            The automaton over token ids.

        Example:
            >>> from vlhmm.control import TokenTexts
            >>> lm = vlhmm.load("demo-model")
            >>> automaton = vlhmm.length(2, 3).over_tokens(TokenTexts.of(lm.tokenizer))
            >>> [automaton.accepts(lm.tokenizer.encode(text)) for text in ("the", "the cat", "the cat sees a bird")]
            [False, True, False]
        """
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
            lambda count: [min(count + 1, enough)],
            lambda count: self.at_least <= count and (self.at_most is None or count <= self.at_most),
            np.zeros(texts.num_tokens, dtype=np.int64),
        )


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
        hint = f": write vlhmm.contains({constraint!r})" if isinstance(constraint, str) else ""
        raise ValueError(
            f"{constraint!r} ({type(constraint).__name__}) is no constraint{hint or ': vlhmm.contains(text) makes one'}"
        )
    return constraint


def _check_range(name: str, at_least: int, at_most: int | None) -> None:
    for limit in (at_least, 0 if at_most is None else at_most):
        if not is_integer(limit):
            raise ValueError(f"{name}({at_least!r}, {at_most!r}) is no range; give integers, as in {name}(3, 5)")
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise ValueError(f"{name}({at_least}, {at_most}) is no range; give 0 <= at_least <= at_most")
    if max(at_least, at_most or 0) > MAX_COUNT:
        raise ValueError(f"{name}({at_least}, {at_most}) counts beyond {MAX_COUNT:,}; give smaller numbers")
