"""States given from outside: what the first part of training climbs p(x, z) with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from vlhmm.training.settings import TrainSettings


@runtime_checkable
class Labels(Protocol):
    """Gives every token its state."""

    def __call__(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """A state for each token, one that can emit it; without waiting for a GPU."""
        ...

    def require_sound(self) -> None:
        """Raises if any of the states given so far are worthless."""
        ...


@dataclass(frozen=True)
class JointPhase:
    """The first part of training climbs log p(x, z), the states z given, before log p(x) takes over."""

    label: Labels
    tokens: int
    """So many, which count in training's total; -1: all of it."""
    about: str = ""
    """What decides the states: a run is gone on with by the same ones alone."""


def joint_steps(tokens: int, settings: TrainSettings, num_steps: int) -> int:
    """The steps of `num_steps` that so many tokens of p(x, z) are."""
    per_step = settings.batch_size * settings.window
    steps = num_steps if tokens == -1 else max(1, round(tokens / per_step))
    if steps > num_steps:
        raise ValueError(
            f"{tokens:,} tokens are for p(x, z), but training reads {num_steps * per_step:,} in all, and they count in them: "
            "make them fewer, or train for more epochs"
        )
    return steps
