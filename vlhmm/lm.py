"""LanguageModel: tokenizer and HMM together, text in and text out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.checkpoint import load_model, save_model
from vlhmm.data import Tokenizer, Tokens
from vlhmm.evaluate import Evaluation, HMMScorer, evaluate
from vlhmm.hmm import HMM
from vlhmm.inference.sampling import StateWords, draw
from vlhmm.models import Model
from vlhmm.tables import Belief


@dataclass(frozen=True)
class TokenScore:
    token: str
    log_prob: float
    """log p(token | all before it)."""


@dataclass(frozen=True)
class Score:
    tokens: list[TokenScore]

    @property
    def log_prob(self) -> float:
        return math.fsum(token.log_prob for token in self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_prob / len(self.tokens)) if self.log_prob > -math.inf else math.inf


@dataclass(frozen=True)
class NamedState:
    """A state as a person reads it: its number, its block, the words it emits most."""

    state: int
    block: int
    words: list[tuple[str, float]]
    """The most likely words with p(word | state)."""

    def __str__(self) -> str:
        return f"{self.state} [{' '.join(word for word, _ in self.words)}]"


@dataclass(frozen=True)
class TokenPosterior:
    token: str
    states: list[tuple[NamedState, float]]
    """The most likely states with p(state | text), best first."""
    entropy: float
    """Of the posterior over states, in nats."""


@dataclass(frozen=True)
class BestPath:
    tokens: list[str]
    states: list[NamedState]
    log_prob: float
    """log p(text, states)."""


class LanguageModel:
    """A tokenizer and an HMM over its tokens.

    Text begins after an EOS where the model's states are carried over EOS (and the tokenizer has one), else from the start
    distribution: in both cases as a new line begins in training.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, about: Mapping[str, Any] | None = None) -> None:
        if tokenizer.vocab_size != model.support.num_words:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {model.support.num_words}: "
                "use the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.about = dict(about or {})

    @cached_property
    def hmm(self) -> HMM:
        """The model's tables, made once. After further training make a new LanguageModel."""
        with torch.no_grad():
            return HMM(self.model.tables().detach())

    @cached_property
    def _state_words(self) -> StateWords:
        return StateWords(self.hmm.tables)

    def save(self, folder: str | Path) -> None:
        save_model(Path(folder), self.model, self.tokenizer, self.about)

    def perplexity(self, tokens: Tokens) -> float:
        """Per token, as one exact stream."""
        return self.evaluate(tokens).perplexity

    def evaluate(self, tokens: Tokens, streams: int = 1) -> Evaluation:
        return evaluate(HMMScorer(self.hmm.tables), tokens, self.tokenizer, streams=streams)

    def score(self, text: str, *, eos: bool = False) -> Score:
        """log p of every token given those before it; `eos` scores the end of the line too."""
        ids = self._encode(text, eos)
        with torch.no_grad():
            log_probs = self.hmm.token_log_probs(ids, belief=self._opening)
        names = [self.tokenizer.token(token) for token in ids[0].tolist()]
        return Score([TokenScore(name, value) for name, value in zip(names, log_probs[0].tolist(), strict=True)])

    def next_tokens(self, text: str = "", top: int = 10) -> list[tuple[str, float]]:
        """The most likely next tokens after `text`, with their probabilities."""
        if top < 1:
            raise ValueError(f"top is {top}, but at least 1 token is needed")
        probs = self.hmm.next_token_probs(self._belief_after(text))[0]
        best = probs.topk(min(top, probs.shape[0]))
        return [
            (self.tokenizer.token(token), prob)
            for prob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def posterior(self, text: str, top: int = 3) -> list[TokenPosterior]:
        """For each token the states it most likely came from, given the whole text."""
        ids = self._encode(text)
        posterior = self.hmm.posterior(ids, belief=self._opening)
        probs = posterior.probs[0]
        best = probs.topk(min(top, probs.shape[1]), dim=1)
        states = posterior.states[0].gather(1, best.indices)
        entropy = -torch.special.xlogy(probs, probs).sum(1)
        return [
            TokenPosterior(
                self.tokenizer.token(token),
                [(self.name_state(state), prob) for state, prob in zip(row, row_probs, strict=True)],
                nats,
            )
            for token, row, row_probs, nats in zip(
                ids[0].tolist(), states.tolist(), best.values.tolist(), entropy.tolist(), strict=True
            )
        ]

    def viterbi(self, text: str) -> BestPath:
        """The most likely state path of `text`."""
        ids = self._encode(text)
        opening = self._opening
        if opening is not None:
            ids = torch.cat([opening.token[None].cpu(), ids], dim=1)
        path = self.hmm.viterbi(ids)
        log_prob, first = float(path.log_prob[0, 0]), 0
        if opening is not None:
            # The EOS before the text is given, not told.
            log_prob, first = log_prob - float(self.hmm.log_prob(ids[:, :1])), 1
        return BestPath(
            [self.tokenizer.token(token) for token in ids[0, first:].tolist()],
            [self.name_state(state) for state in path.states[0, 0, first:].tolist()],
            log_prob,
        )

    def name_state(self, state: int, top: int = 5) -> NamedState:
        """A state with the words it emits most."""
        if not 0 <= state < self.hmm.num_states:
            raise ValueError(f"state is {state}, but must be between 0 and {self.hmm.num_states - 1}")
        words, log_probs = self._state_words.of(torch.tensor([state], device=self.hmm.tables.device))
        best = log_probs[0].topk(min(top, log_probs.shape[1]))
        names = [self.tokenizer.token(token) for token in words[0, best.indices].tolist()]
        probs = best.values.exp().tolist()
        block = state // self.hmm.tables.support.states_per_word
        return NamedState(state, block, [(name, prob) for name, prob in zip(names, probs, strict=True) if prob > 0])

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 50,
        num: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> list[str]:
        """`num` continuations of `prompt`, prompt included, each up to EOS or `max_tokens` new tokens."""
        for name, value in (("max_tokens", max_tokens), ("num", num), ("top_k", 1 if top_k is None else top_k)):
            if value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, but must be above 0: use top_k=1 for the likeliest token")
        belief = self._belief_after(prompt)
        if belief is not None:
            belief = Belief(belief.token.expand(num), belief.log_probs.expand(num, -1))
        drawn: list[Int[Tensor, " N"]] = []
        for _ in range(max_tokens):
            log_probs = self.hmm.next_token_probs(belief).expand(num, -1).log() / temperature
            token = draw(_keep_top(log_probs, top_k), generator)
            drawn.append(token)
            belief = self.hmm.filter(token[:, None], belief=belief).belief
        prompt_ids = self.tokenizer.encode(prompt) if prompt else []
        return [self.tokenizer.decode(prompt_ids + self._until_eos(row)) for row in torch.stack(drawn, 1).tolist()]

    def _until_eos(self, ids: list[int]) -> list[int]:
        eos = self.tokenizer.eos_id
        return ids[: ids.index(eos)] if eos is not None and eos in ids else ids

    @cached_property
    def _opening(self) -> Belief | None:
        """What is believed before the first token of a text."""
        eos = self.tokenizer.eos_id
        if eos is None or self.hmm.tables.reset_token is not None:
            return None
        return self.hmm.filter([[eos]]).belief

    def _belief_after(self, text: str) -> Belief | None:
        if not text:
            return self._opening
        return self.hmm.filter(self._encode(text), belief=self._opening).belief

    def _encode(self, text: str, eos: bool = False) -> Int[Tensor, "1 T"]:
        ids = self.tokenizer.encode(text)
        if eos and self.tokenizer.eos_id is not None:
            ids = [*ids, self.tokenizer.eos_id]
        if not ids:
            raise ValueError("the text has 0 tokens, but at least 1 is needed")
        return torch.tensor([ids])


def _keep_top(log_probs: Float[Tensor, "N X"], top_k: int | None) -> Float[Tensor, "N X"]:
    if top_k is None or top_k >= log_probs.shape[1]:
        return log_probs
    best = log_probs.topk(top_k, dim=1)
    return torch.full_like(log_probs, -torch.inf).scatter_(1, best.indices, best.values)


def load(folder: str | Path, device: torch.device | str = "cpu") -> LanguageModel:
    """The language model that `save` or a training run left in `folder`."""
    saved = load_model(folder, device)
    return LanguageModel(saved.model, saved.tokenizer, saved.config["about"])
