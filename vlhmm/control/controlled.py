"""Constraints on the texts of one HMM and its tokenizer: probability, samples, the best text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.best import BestConstrained, BestContinuation
from vlhmm.control.constraints import Constraint, check_constraint
from vlhmm.control.generate import Choice, LookaheadCache, sample_constrained
from vlhmm.control.possible import ImpossibleConstraintError, ending_at, raise_impossible, without
from vlhmm.control.product import Lookahead, TransitionMatrix, lookahead
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.control.token_texts import TokenTexts
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.data import Tokenizer
from vlhmm.hmm import HMM
from vlhmm.inference.gather import Batch
from vlhmm.inference.past import Past
from vlhmm.inference.sampling import Generators
from vlhmm.inference.score import log_filtered_states
from vlhmm.pauses import pause
from vlhmm.tables import Belief

Ending = Literal["none", "may", "must"]
"""Whether EOS is no token of the text, may end it, or must end it."""


def constraint_log_prob(
    hmm: HMM, automaton: Automaton, length: int, belief: Belief | None = None
) -> Float[Tensor, " B"]:
    """log P(the next `length` tokens are accepted | the past); without a belief from the start of a text, with B = 1."""
    return lookahead(hmm.tables, automaton, length).log_prob(hmm.tables, belief, length)


class ControlledHMM:
    """An HMM whose texts are held to constraints. What was computed for the constraints used last is kept.

    A constraint is on what follows the past, not on the past itself.
    """

    def __init__(self, hmm: HMM, tokenizer: Tokenizer, transition: TransitionMatrix | None = None) -> None:
        self._hmm = hmm
        self._tokenizer = tokenizer
        self.transition = transition or TransitionMatrix(hmm.tables)
        self._cache = LookaheadCache()

    def probability(
        self,
        constraint: Constraint | Automaton,
        length: int,
        past: Past,
        *,
        until_eos: bool,
        time_limit: float | None = TIME_LIMIT,
        max_bytes: int | None = None,
    ) -> list[float]:
        """P(the next `length` tokens, or those up to EOS within `length`, satisfy it) after each text; 0 where none can."""
        if length < 1:
            raise ValueError(f"length is {length}, but must be at least 1 token")
        if until_eos and self._tokenizer.eos_id is None:
            raise ValueError("until_eos=True, but the tokenizer has no end-of-text token: use until_eos=False")
        ahead = self._following(
            constraint, length, "must" if until_eos else "none", time_limit, max_bytes=max_bytes
        ).ahead
        probs: list[float] = self._log_prob(ahead, past, length).double().exp().tolist()
        return probs

    def prepare(
        self,
        constraint: Constraint | Automaton,
        max_tokens: int,
        past: Past,
        *,
        never: int | None = None,
        time_limit: float | None = TIME_LIMIT,
        max_bytes: int | None = None,
    ) -> ConstrainedTokens:
        """What continuations of up to `max_tokens` tokens follow; refuses a constraint that none satisfies.

        `max_bytes` limits the table of the constraint; None: whatever fits into memory.
        """
        following = self._following(constraint, max_tokens, "may", time_limit, never, max_bytes)
        self._require_possible(constraint, following.ahead, max_tokens, past, time_limit, never)
        return following

    def ahead_of_text(
        self,
        constraint: Constraint | Automaton,
        length: int,
        *,
        time_limit: float | None = TIME_LIMIT,
        max_bytes: int | None = None,
    ) -> Lookahead:
        """The look-ahead that `along` follows through a text of `length` tokens."""
        return self._following(constraint, length, "none", time_limit, max_bytes=max_bytes).ahead

    def along(self, ahead: Lookahead, tokens: Sequence[int], belief: Belief | None) -> list[float]:
        """P(the text satisfies the constraint | its length and its first t tokens) for t = 0, 1, ..., length."""
        tables, length = self._hmm.tables, len(tokens)
        ids = torch.tensor([list(tokens)], device=tables.device)
        log_filtered, _ = log_filtered_states(tables, Batch(ids, torch.tensor([length], device=tables.device)), belief)
        probs = []
        for done in range(length):
            pause()
            state = ahead.automaton.run(tokens[:done])
            here = replace(ahead, automaton=replace(ahead.automaton, start=state))
            known = belief
            if done:
                known = Belief(ids[:, done - 1], log_filtered[:, done - 1])
            probs.append(float(here.log_prob(tables, known, length - done).double().exp()))
        return [*probs, float(ahead.automaton.accepts(tokens))]

    def sample(
        self,
        constraint: Constraint | Automaton,
        num: int,
        max_tokens: int,
        past: Past,
        choice: Choice,
        generators: Generators,
        *,
        never: int | None = None,
        time_limit: float | None = TIME_LIMIT,
    ) -> list[list[int]]:
        """`num` continuations x ~ p(x | constraint, no token is `never`) of each text, each up to EOS or `max_tokens` tokens."""
        following = self.prepare(constraint, max_tokens, past, never=never, time_limit=time_limit)
        return sample_constrained(
            following,
            past,
            num,
            max_tokens,
            eos_id=self._tokenizer.eos_id,
            choice=choice,
            generators=generators,
        )

    def best(
        self,
        constraint: Constraint | Automaton | None,
        max_tokens: int,
        past: Past,
        *,
        never: int | None = None,
        time_limit: float | None = TIME_LIMIT,
    ) -> list[BestContinuation]:
        """The likeliest continuation of each text with its states, up to EOS or of `max_tokens` tokens, none of
        them `never`."""
        tables = self._hmm.tables
        if constraint is None:
            constraint = _anything(tables.num_words)
        automaton = self._automaton(constraint, "may", time_limit, never)
        best = BestConstrained(tables, automaton, max_tokens, eos_id=self._tokenizer.eos_id)
        texts = []
        for number in range(past.num):
            one = past.of([number])
            found = best.text(one.ask(self._log_ahead)[0])
            if found is None:
                ahead = lookahead(tables, automaton, max_tokens)
                self._require_possible(constraint, ahead, max_tokens, past, time_limit, never)
            assert found is not None
            texts.append(found)
        return texts

    def _log_ahead(self, rows: Int[Tensor, " R"], belief: Belief | None) -> Float[Tensor, "R Z"]:
        if belief is None:
            return self._hmm.tables.log_start.expand(len(rows), -1)
        return self.transition.log_ahead(belief)

    def _log_prob(self, ahead: Lookahead, past: Past, steps: int) -> Float[Tensor, " N"]:
        """log P(the constraint is met | each text)."""
        tables = self._hmm.tables
        return past.ask(lambda rows, belief: ahead.log_prob(tables, belief, steps).expand(len(rows))[:, None])[:, 0]

    def _automaton(
        self, constraint: Constraint | Automaton, ending: Ending, time_limit: float | None, never: int | None = None
    ) -> Automaton:
        if not isinstance(constraint, Automaton):
            check_constraint(constraint)
            constraint = constraint.compile(self._tokenizer, time_limit=time_limit)
        automaton = without(constraint, never)
        eos_id = self._tokenizer.eos_id
        if ending == "none" or eos_id is None:
            return automaton
        return ending_at(automaton, [eos_id], required=ending == "must")

    def _following(
        self,
        constraint: Constraint | Automaton,
        steps: int,
        ending: Ending,
        time_limit: float | None,
        never: int | None = None,
        max_bytes: int | None = None,
    ) -> ConstrainedTokens:
        def make() -> ConstrainedTokens:
            tables = self._hmm.tables
            automaton = self._automaton(constraint, ending, time_limit, never)
            needed = (steps + 1) * automaton.num_states * tables.num_states * tables.log_emission.element_size()
            if max_bytes is not None and needed > max_bytes:
                raise ValueError(
                    f"the constraint's table of {steps:,} tokens x {automaton.num_states:,} automaton states x "
                    f"{tables.num_states:,} states takes {needed:,} bytes, but the limit is {max_bytes:,}: "
                    "ask for fewer tokens, or for a simpler constraint"
                )
            ahead = lookahead(tables, automaton, steps, self.transition)
            return ConstrainedTokens(tables, ahead, self.transition)

        return self._cache.get((constraint, ending, never), steps, make)

    def _require_possible(
        self,
        constraint: Constraint | Automaton,
        ahead: Lookahead,
        max_tokens: int,
        past: Past,
        time_limit: float | None,
        never: int | None,
    ) -> None:
        """Raises for the first text after which the constraint is impossible, with the reason."""
        impossible = self._log_prob(ahead, past, max_tokens).isinf().nonzero()[:, 0].tolist()
        if not impossible:
            return
        text = past.of([impossible[0]])

        def possible(automaton: Automaton) -> bool:
            part = lookahead(self._hmm.tables, automaton, max_tokens, self.transition)
            return not bool(self._log_prob(part, text, max_tokens).isinf())

        texts = TokenTexts.of(self._tokenizer)
        compiled = partial(self._automaton, ending="may", time_limit=time_limit, never=never)
        try:
            raise_impossible(constraint, texts, compiled, possible, max_tokens, time_limit)
        except ImpossibleConstraintError as error:
            if past.num == 1:
                raise
            raise ImpossibleConstraintError(f"text {impossible[0]} of the list (the first is 0): {error}") from None


def _anything(num_tokens: int) -> Automaton:
    zeros = torch.zeros(num_tokens, dtype=torch.int64)
    return Automaton(zeros, zeros[:1, None], 0, torch.ones(1, dtype=torch.bool))
