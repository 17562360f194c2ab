"""Jobs of the engine: texts to read, texts to write, and queries of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vlhmm.control.generate import Choice
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.server.texts import Stops, Writer
from vlhmm.tables import Belief

Top = list[tuple[int, float]]
"""The most likely tokens of a position with their log-probabilities, most likely first."""


@dataclass(eq=False)
class Job:
    """Something that a request waits for; `answered` is called in the engine's thread."""

    answered: Callable[[Any], None]
    cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class Reading(Job):
    """A text whose tokens are scored; answered by `Read`."""

    ids: list[int]
    belief: Belief | None
    """Before the next token; None: the start distribution."""
    top: int = 0
    """Most likely tokens that are named for each position."""
    position: int = field(default=0, init=False)
    log_probs: list[float] = field(default_factory=list, init=False)
    tops: list[Top] = field(default_factory=list, init=False)

    @property
    def left(self) -> int:
        return len(self.ids) - self.position


@dataclass(frozen=True)
class Read:
    """What is known of a text that was read."""

    log_probs: list[float]
    """log p(token | all tokens before), one a token."""
    tops: list[Top]
    """The same of the most likely tokens of each position; empty where none was asked for."""
    belief: Belief | None
    """After the last token."""

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)


@dataclass(eq=False)
class Choices:
    """One continuation that is being written."""

    writer: Writer
    stops: Stops | None
    """None: there are no stop strings."""
    belief: Belief | None
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


@dataclass(frozen=True)
class Piece:
    """Text that a step has added to a continuation."""

    row: int
    text: str
    num_tokens: int
    """Of the continuation so far."""
    finish_reason: str | None


@dataclass(eq=False)
class Writing(Job):
    """Continuations of one prompt; answered by `Piece` where pieces are wanted, and at the end by None."""

    prompt: list[int]
    belief: Belief | None
    rows: list[Choices]
    max_tokens: int
    choice: Choice
    generator: torch.Generator
    following: ConstrainedTokens | None
    """The constraint; None: there is none."""
    top: int = 0
    pieces: bool = False
    times: list[float] = field(default_factory=list, init=False)
    """When each token was written."""
    refused: ValueError | None = field(default=None, init=False)
    """Why there is no answer: no token that may be drawn can follow one of the continuations."""
    left: int = field(init=False)
    constraint_states: list[int] = field(init=False)
    log_ahead: list[torch.Tensor] = field(init=False)
    """Of rows under a constraint."""

    def __post_init__(self) -> None:
        self.left = self.max_tokens
        if self.following is not None:
            self.constraint_states = [self.following.ahead.automaton.start] * len(self.rows)
            self.log_ahead = list(self.following.log_ahead(self.belief).expand(len(self.rows), -1).split(1))

    def going(self) -> list[int]:
        return [number for number, row in enumerate(self.rows) if row.finish_reason is None]


@dataclass(eq=False)
class Query(Job):
    """A question about a text."""

    key: Hashable
    """Questions with the same key are one question about several texts; None: it stands alone."""
    text: str
    tokens: int
    ask: Callable[[list[str]], Sequence[Any]]
    """Calls `vlhmm.pauses.pause` where others may have their turn."""


def first_of_each(waiting: Sequence[Sequence[Any]], most: int) -> list[Any]:
    """Up to `most` waiting jobs, round robin over requests (fair scheduling): a request of many texts does not delay one of a single text."""
    taken: list[Any] = []
    depth = 0
    while len(taken) < most and any(len(one) > depth for one in waiting):
        for one in waiting:
            if len(one) > depth and len(taken) < most:
                taken.append(one[depth])
        depth += 1
    return taken
