"""What a language model answers about constraints, apart from drawing texts that satisfy one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from vlhmm.arguments import check_count, check_text
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.inference.past import Past
from vlhmm.tables import Belief
from vlhmm.text.answers import BestText
from vlhmm.text.batching import Texts, one_or_all
from vlhmm.text.queries import TextQueries


class ConstrainedTexts:
    """Methods of `LanguageModel`, which has the rest."""

    @property
    def _queries(self) -> TextQueries:
        raise NotImplementedError

    @property
    def _controlled(self) -> ControlledHMM:
        raise NotImplementedError

    @property
    def _opening(self) -> Belief | None:
        raise NotImplementedError

    def _never(self, unk: bool) -> int | None:
        raise NotImplementedError

    def _possible_past(self, prompts: list[str]) -> Past:
        raise NotImplementedError

    def _continued(self, prompts: Sequence[str], ids: Sequence[list[int]]) -> list[str]:
        raise NotImplementedError

    @overload
    def best_text(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 50,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> BestText: ...

    @overload
    def best_text(
        self,
        prompt: Texts,
        *,
        max_tokens: int = 50,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> list[BestText]: ...

    def best_text(
        self,
        prompt: str | Texts = "",
        *,
        max_tokens: int = 50,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> BestText | list[BestText]:
        """Find the continuation x of `prompt` with the largest p(x, z), maximised over its states z too.

        Args:
            prompt: Where the text begins, or a list of such prompts.
            max_tokens: New tokens, at most; a text ends at EOS or there.
            constraint: What the new tokens must satisfy; None: nothing.
            unk: Let the unknown token be in the text too.
            time_limit: Seconds of CPU time that compiling the constraint may take; None: any time.

        Returns:
            The text, prompt included, and its log p(x, z); for a list of prompts a list.

        Raises:
            ImpossibleConstraintError: No continuation satisfies the constraint.
            ImpossibleTextError: The prompt has probability zero.
            ValueError: `max_tokens` is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.best_text("the dog", max_tokens=10, constraint=vlhmm.contains("garden")).text
            'the dog sees a bird in the garden'
        """
        check_count("max_tokens", max_tokens)

        def answer(prompts: list[str]) -> list[BestText]:
            past = self._possible_past(prompts)
            never = self._never(unk)
            best = self._controlled.best(constraint, max_tokens, past, never=never, time_limit=time_limit)
            texts = self._continued(prompts, [found.tokens for found in best])
            return [BestText(text, found.log_prob) for text, found in zip(texts, best, strict=True)]

        return one_or_all("prompt", prompt, answer)

    @overload
    def constraint_probability(
        self,
        prefix: str,
        constraint: Constraint | Automaton,
        length: int,
        *,
        until_eos: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> float: ...

    @overload
    def constraint_probability(
        self,
        prefix: Texts,
        constraint: Constraint | Automaton,
        length: int,
        *,
        until_eos: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> list[float]: ...

    def constraint_probability(
        self,
        prefix: str | Texts,
        constraint: Constraint | Automaton,
        length: int,
        *,
        until_eos: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> float | list[float]:
        """Compute P(the next `length` tokens after `prefix` satisfy the constraint).

        Args:
            prefix: The text before, or a list of such texts.
            constraint: The constraint, on the tokens after `prefix`.
            length: Number of tokens.
            until_eos: Compute P(EOS comes within `length` tokens, and the tokens before it satisfy the constraint) instead. Without
                it EOS is none of the tokens.
            time_limit: Seconds of CPU time that compiling the constraint may take; None: any time.

        Returns:
            The probability; for a list of texts a list.

        Raises:
            ImpossibleTextError: `prefix` has probability zero.
            ValueError: `length` is below 1, or `until_eos` while the tokenizer has no EOS.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> round(lm.constraint_probability("the cat sees", vlhmm.contains("fish"), length=2), 1)
            0.4
        """
        check_count("length", length)

        def answer(prefixes: list[str]) -> list[float]:
            past = self._possible_past(prefixes)
            return self._controlled.probability(constraint, length, past, until_eos=until_eos, time_limit=time_limit)

        return one_or_all("prefix", prefix, answer)

    def constraint_path(
        self, text: str, constraint: Constraint | Automaton, *, time_limit: float | None = TIME_LIMIT
    ) -> list[float]:
        """Compute P(a text satisfies the constraint | its first t tokens) for each t.

        The text has as many tokens as `text`. A text with EOS among its tokens does not satisfy a constraint.

        Args:
            text: The text that is followed, T tokens.
            constraint: The constraint, on the whole text.
            time_limit: Seconds of CPU time that compiling the constraint may take; None: any time.

        Returns:
            T + 1 probabilities, for t = 0, 1, ..., T. The last one is 1 if `text` satisfies the constraint, else 0.

        Raises:
            ImpossibleTextError: `text` has probability zero.
            ValueError: The text has no tokens.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> path = lm.constraint_path("the cat sees a bird", vlhmm.contains("bird"))
            >>> [round(prob, 1) for prob in path]
            [0.6, 0.6, 0.6, 0.6, 0.6, 1.0]
        """
        check_text("text", text)
        (tokens,) = self._queries.encode([text])
        self._possible_past([text])
        ahead = self._controlled.ahead_of_text(constraint, len(tokens), time_limit=time_limit)
        return self._controlled.along(ahead, tokens, self._opening)
