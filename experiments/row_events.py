"""What the training of a row tells while it runs, where it keeps things, and what it ends with."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.measure import Measured
from vlhmm.evaluate import Scorer
from vlhmm.training.trainer import CheckEvent, StepEvent

SAVE_SECONDS = 60.0
"""Between two saves of a run: at every check they would take longer than the training of large models."""


@dataclass(frozen=True)
class Working:
    """Something other than a step of training has begun, or has come so far."""

    what: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True)
class RowStopped:
    """Training ended before its plan did; running the row again goes on from there."""

    reason: Literal["time", "interrupted"]
    step: int
    num_steps: int


TrainingEvent = StepEvent | CheckEvent | Working | RowStopped


@dataclass(frozen=True)
class Place:
    """Where a row's training is kept."""

    folder: Path
    runs: Path
    """The folder of all runs, with what rows share."""
    passing: bool = False
    """The folder is of no use once the row has its result."""

    @property
    def blocks(self) -> Path:
        return self.runs / "blocks"

    @property
    def teachers(self) -> Path:
        return self.runs / "teachers"

    @property
    def clusters(self) -> Path:
        return self.runs / "clusters"


@dataclass(frozen=True)
class Trained:
    scorer: Scorer[Any]
    """With the weights that were best on validation."""
    num_parameters: int
    seconds: float
    """Of all runs, resumed ones together."""
    others: list[Measured]
    """What can only be known from the training itself."""
    curve: list[dict[str, float]]


Training = Generator[TrainingEvent, None, Trained | None]
"""Events, and at the end what was trained; None if it stopped before."""
