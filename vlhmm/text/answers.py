"""What a `LanguageModel` answers with: records that a person can read."""

from __future__ import annotations

import math
from dataclasses import dataclass


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


@dataclass(frozen=True)
class BestText:
    text: str
    log_prob: float
    """log p(what was added, its states | the prompt)."""


@dataclass(frozen=True)
class ExplainedState:
    """A state that a token may have come from, and its neighbours on the way through the text."""

    state: NamedState
    prob: float
    """p(state | text)."""
    previous: list[tuple[NamedState, float]]
    """The most likely states before it, with p(state before | this state, text); none where the text begins from the start distribution."""
    next: list[tuple[NamedState, float]]
    """The most likely states after it, with p(state after | this state, text); after the last token those that the model expects."""


@dataclass(frozen=True)
class ExplainedToken:
    token: str
    log_prob: float
    """log p(token | all before it)."""
    entropy: float
    """Of p(state | text), in nats."""
    states: list[ExplainedState]
    """The most likely ones, best first."""

    @property
    def surprisal(self) -> float:
        """In nats."""
        return -self.log_prob


@dataclass(frozen=True)
class Explanation:
    tokens: list[ExplainedToken]
    path_entropy: float
    """Of p(all states | text), in nats."""

    @property
    def score(self) -> Score:
        return Score([TokenScore(token.token, token.log_prob) for token in self.tokens])


@dataclass(frozen=True)
class Filling:
    text: str
    gaps: list[str]
    """What stands in each gap."""
    log_prob: float
    """log p(what stands in the gaps | the rest), number of tokens included."""


@dataclass(frozen=True)
class FilledGap:
    lengths: list[tuple[int, float]]
    """Each number of tokens that the gap may have with p(number | the rest), likeliest first."""
    tokens: list[list[tuple[str, float]]]
    """For each position, if all gaps have their likeliest numbers of tokens, the most likely tokens with p(token | the rest)."""


@dataclass(frozen=True)
class Infilling:
    log_prob: float
    """log p(the text), what stands in the gaps summed out, all numbers of tokens being equally likely beforehand."""
    gaps: list[FilledGap]
    best: Filling
    samples: list[Filling]
