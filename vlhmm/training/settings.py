"""What decides a training run apart from the model and the text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vlhmm.training.schedule import ScheduleKind

DROPOUT_STAGES = 5
"""The rates that an annealed dropout takes: each has shapes of its own, so on a GPU it is captured anew."""


@dataclass(frozen=True)
class TrainSettings:
    learning_rate: float = 1e-2
    """The largest one, after warm-up."""
    schedule: ScheduleKind = "cosine"
    """cosine: down to final_rate of it; plateau: divided by decay when validation stops falling; constant."""
    warmup: float = 0.02
    """The part of all steps over which the rate rises from 0."""
    final_rate: float = 0.02
    """cosine: what is left of the rate at the end."""
    patience: int = 8
    """plateau: checks without a better validation loss before the rate falls."""
    decay: float = 4.0
    """plateau: what the rate is divided by."""
    min_rate: float = 0.0
    """plateau: training ends when the rate has fallen below this: nothing changes any more."""
    epochs: int = 20
    batch_size: int = 16
    """Windows side by side."""
    window: int = 32
    """Tokens of a window."""
    windows: Literal["carried", "independent"] = "carried"
    """carried: each window goes on from the last one's belief; independent: each begins from the start distribution."""
    state_dropout: float = 0.5
    """The part of each block's states that a step leaves out."""
    state_dropout_end: float = -1.0
    """The same in the last epochs, reached over the training in equal steps, between epochs; -1: it does not change."""
    dropout: Literal["states", "columns"] = "states"
    """states: exactly that part of each block is left out; columns: each state, independently, cannot be entered in a step,
    which works without blocks too."""
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip: float = 5.0
    """The largest norm of the gradient; 0: not clipped."""
    ema: float = 0.0
    """Decay of the running average of weights that is evaluated and saved; 0: the weights themselves."""
    freeze_embeddings: float = 0.0
    """The part of all steps, the first ones, in which embeddings stay as they are."""
    frozen: Literal["states", "words", "both"] = "both"
    """Which of them."""
    checks_per_epoch: int = 4
    """How often validation perplexity is taken."""
    graphs: bool = True
    """On a GPU: run steps as CUDA graphs. The result is the same; off, errors are easier to find."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "window", "checks_per_epoch", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("learning_rate", "decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and above 0")
        for name in ("state_dropout", "ema", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
        if self.state_dropout_end != -1 and not 0 <= self.state_dropout_end < 1:
            raise ValueError(
                f"state_dropout_end is {self.state_dropout_end}, but must be at least 0 and below 1, or -1 for no change"
            )
        for name in ("warmup", "final_rate", "freeze_embeddings"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be between 0 and 1")
        for name in ("weight_decay", "clip", "min_rate"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")

    def dropout_in(self, epoch: int) -> float:
        """The state dropout of an epoch, counted from 0."""
        if self.state_dropout_end == -1:
            return self.state_dropout
        stages = min(DROPOUT_STAGES, self.epochs)
        part = epoch * stages // self.epochs / max(1, stages - 1)
        return (1 - part) * self.state_dropout + part * self.state_dropout_end
