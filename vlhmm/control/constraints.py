"""What a text must be, as objects that one combines with `&`, `|` and `~`.

The constraints themselves are beside this file: on phrases, on numbers of words and tokens, and on the whole text, as a pattern or as
one of several texts. White space is that of ASCII.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from vlhmm.control.automaton import Automaton
from vlhmm.control.operations import MAX_STATES, TooManyStates, complement, intersection, union
from vlhmm.control.time_limit import TIME_LIMIT, check_time, limited_to
from vlhmm.control.token_texts import HuggingFaceTokenizer, TokenTexts
from vlhmm.data import Tokenizer


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

    def _negated(self) -> str:
        """What `repr` shows of its complement."""
        return f"~{self}"

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
class AllOf(Constraint):
    constraints: tuple[Constraint, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({part})" if isinstance(part, AnyOf) else repr(part) for part in self.constraints)

    def _negated(self) -> str:
        return f"~({self})"

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

    def _negated(self) -> str:
        return f"~({self})"

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
        return self.constraint._negated()

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


def _combined(
    parts: tuple[Constraint, ...], texts: TokenTexts, combine: Callable[[list[Automaton]], Automaton]
) -> Automaton:
    """Constraints on text first: their product automata over bytes are smaller, and lifted to tokens once."""
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
