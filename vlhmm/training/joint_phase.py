"""Given states z (labels) for the first phase of training, which maximises log p(x, z)."""

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
        """A state for each token, one that can emit it; without host-device synchronisation."""
        ...

    def require_sound(self) -> None:
        """Raises if any of the labels given so far are invalid."""
        ...


@dataclass(frozen=True)
class JointPhase:
    """The first phase of training: gradient ascent on log p(x, z) with given states z, before log p(x)."""

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
