"""Questions to a model about lists of texts, answered in as few forward passes as fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch

from vlhmm.data import Tokenizer
from vlhmm.hmm import HMM
from vlhmm.inference.past import Past
from vlhmm.inference.predict import PreciseNextTokens, likeliest_tokens
from vlhmm.inference.sampling import StateWords
from vlhmm.tables import Belief
from vlhmm.text.answers import BestPath, Explanation, NamedState, Score, TokenPosterior, TokenScore
from vlhmm.text.batching import BATCH_BYTES, TextBatch, answers_of, in_batches, repeated
from vlhmm.text.explain import explain


class TextQueries:
    """An HMM and its tokenizer: every method takes token ids of several texts, or several texts, and answers with a list."""

    def __init__(self, hmm: HMM, tokenizer: Tokenizer, opening: Belief | None) -> None:
        self.hmm = hmm
        self.tokenizer = tokenizer
        self.opening = opening
        """The belief before the first token of a text."""

    @cached_property
    def _state_words(self) -> StateWords:
        return StateWords(self.hmm.tables)

    def encode(self, texts: Sequence[str], *, eos: bool = False) -> list[list[int]]:
        """Token ids of texts, at least one each."""
        ids = self.tokenizer.encode_batch(texts)
        if eos and self.tokenizer.eos_id is not None:
            ids = [[*text, self.tokenizer.eos_id] for text in ids]
        empty = next((place for place, text in enumerate(ids) if not text), None)
        if empty is not None:
            which = "the text" if len(ids) == 1 else f"text {empty} of the list (the first is 0)"
            raise ValueError(f"{which} has 0 tokens, but at least 1 is needed")
        return ids

    def scores(self, ids: Sequence[Sequence[int]]) -> list[Score]:
        """log p(token | all tokens before) of each token."""

        def question(batch: TextBatch) -> list[Score]:
            with torch.no_grad():
                found = self.hmm.token_log_probs(batch.tokens, batch.lengths, self._openings(batch))
            return [
                Score([TokenScore(*one) for one in zip(self._names(text), log_probs, strict=True)])
                for text, log_probs in zip(batch.rows(batch.tokens), batch.rows(found), strict=True)
            ]

        return answers_of(ids, self.hmm.tables, question)

    def posteriors(self, ids: Sequence[Sequence[int]], top: int) -> list[list[TokenPosterior]]:
        """The `top` likeliest states of each token."""

        def question(batch: TextBatch) -> list[list[TokenPosterior]]:
            found = self.hmm.posterior(batch.tokens, batch.lengths, self._openings(batch))
            best = found.probs.topk(min(top, found.probs.shape[2]), dim=2)
            entropy = -torch.special.xlogy(found.probs, found.probs).sum(2)
            columns = [batch.tokens, found.states.gather(2, best.indices), best.values, entropy]
            texts = [list(zip(*rows, strict=True)) for rows in zip(*map(batch.rows, columns), strict=True)]
            named = self.named(state for text in texts for _, states, _, _ in text for state in states)
            return [
                [
                    TokenPosterior(
                        self.tokenizer.token(token),
                        [(named[state], prob) for state, prob in zip(states, probs, strict=True)],
                        nats,
                    )
                    for token, states, probs, nats in text
                ]
                for text in texts
            ]

        return answers_of(ids, self.hmm.tables, question)

    def best_paths(self, ids: Sequence[Sequence[int]], k: int) -> list[list[BestPath]]:
        """The k likeliest state paths, fewer where a text has fewer."""

        def question(batch: TextBatch) -> list[list[BestPath]]:
            found = self.hmm.viterbi(batch.tokens, batch.lengths, k, self._openings(batch))
            named = self.named(found.states[found.states >= 0].tolist())
            texts = zip(batch.rows(batch.tokens), batch.rows(found.states.mT), found.log_prob.tolist(), strict=True)
            return [
                [
                    BestPath(self._names(text), [named[state] for state in path], log_prob)
                    for path, log_prob in zip(zip(*states, strict=True), log_probs, strict=True)
                    if log_prob > -math.inf
                ]
                for text, states, log_probs in texts
            ]

        return answers_of(ids, self.hmm.tables, question)

    def explanations(self, ids: Sequence[Sequence[int]], top: int, neighbours: int) -> list[Explanation]:
        """How the model reads each text."""
        known: dict[int, NamedState] = {}

        def name_state(state: int) -> NamedState:
            if state not in known:
                known.update(self.named([state]))
            return known[state]

        def question(batch: TextBatch) -> list[Explanation]:
            belief = self._openings(batch)
            return explain(self.hmm, batch, belief, top, neighbours, self.tokenizer.token, name_state)

        return answers_of(ids, self.hmm.tables, question)

    def named(self, states: Iterable[int], top: int = 5) -> dict[int, NamedState]:
        """States with the `top` words that they emit most."""
        numbers = torch.tensor(sorted(set(states)), dtype=torch.int64, device=self.hmm.tables.device)
        named: dict[int, NamedState] = {}
        for some in numbers.split(max(1, BATCH_BYTES // (32 * self._state_words.longest))):
            words, log_probs = self._state_words.of(some)
            best = log_probs.topk(min(top, log_probs.shape[1]), dim=1)
            likely = words.gather(1, best.indices)
            for state, ids, probs in zip(some.tolist(), likely.tolist(), best.values.exp().tolist(), strict=True):
                names = [
                    (self.tokenizer.token(token), prob) for token, prob in zip(ids, probs, strict=True) if prob > 0
                ]
                named[state] = NamedState(state, state // self.hmm.tables.support.states_per_word, names)
        return named

    def past(self, texts: Sequence[str]) -> Past:
        """What is known after each text; an empty one stands where a text opens."""
        ids = self.tokenizer.encode_batch([text for text in texts if text])
        begun = [place for place, text in enumerate(texts) if text]
        if any(not text for text in ids):
            place = next(place for place, text in zip(begun, ids, strict=True) if not text)
            which = "the text" if len(texts) == 1 else f"text {place} of the list (the first is 0)"
            raise ValueError(f"{which} has 0 tokens, but at least 1 is needed")
        tables, opening = self.hmm.tables, self.opening
        token = torch.zeros(len(texts), dtype=torch.int64, device=tables.device)
        log_probs = tables.log_emission.new_zeros(len(texts), tables.support.states_per_word)
        if opening is not None:
            token[:], log_probs[:] = opening.token, opening.log_probs
        for batch in in_batches(ids, tables):
            with torch.no_grad():
                found = self.hmm.filter(batch.tokens, batch.lengths, self._openings(batch)).belief
            rows = [begun[place] for place in batch.places]
            token[rows], log_probs[rows] = found.token, found.log_probs
        known = [bool(text) or opening is not None for text in texts]
        return Past(torch.tensor(known, device=tables.device), Belief(token, log_probs))

    def next_tokens(self, texts: Sequence[str], top: int, never: int | None) -> list[list[tuple[str, float]]]:
        """The `top` likeliest tokens after each text, given that the next is not `never`."""
        tables = self.hmm.tables
        past = self.past(texts)
        found: list[list[tuple[str, float]]] = []
        precise = PreciseNextTokens(tables)
        at_once = max(
            1, BATCH_BYTES // ((tables.num_words + tables.num_states) * 5 * tables.log_emission.element_size())
        )
        for first in range(0, len(texts), at_once):
            some = past.of(slice(first, first + at_once))
            probs = some.ask(lambda rows, belief: self.hmm.next_token_probs(belief).expand(len(rows), -1))
            places = range(first, first + some.num) if len(texts) > 1 else None
            likeliest, tokens = likeliest_tokens(probs, top, never, places, some.of_rows(precise))
            found += [
                list(zip(self._names(ids), row, strict=True))
                for ids, row in zip(tokens.tolist(), likeliest.tolist(), strict=True)
            ]
        return found

    def _openings(self, batch: TextBatch) -> Belief | None:
        return repeated(self.opening, len(batch.places))

    def _names(self, ids: Iterable[int]) -> list[str]:
        return [self.tokenizer.token(token) for token in ids]
