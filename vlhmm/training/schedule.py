"""The learning rate over the course of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

ScheduleKind = Literal["cosine", "plateau", "constant"]


def planned_factor(kind: ScheduleKind, step: int, num_steps: int, warmup: float, final: float) -> float:
    """What the learning rate is multiplied by at `step`: a linear rise over the first part `warmup`, then the schedule."""
    warm_steps = round(warmup * num_steps)
    if step < warm_steps:
        return (step + 1) / warm_steps
    if kind != "cosine":
        return 1.0
    done = (step - warm_steps) / max(1, num_steps - warm_steps)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


@dataclass(frozen=True)
class Plateau:
    """Divides the rate by `decay` after `patience` checks in a row without a better validation loss."""

    patience: int
    decay: float
    best_loss: float = math.inf
    checks_without_gain: int = 0
    factor: float = 1.0

    def after(self, loss: float) -> Plateau:
        if loss < self.best_loss:
            return replace(self, best_loss=loss, checks_without_gain=0)
        if self.checks_without_gain + 1 < self.patience:
            return replace(self, checks_without_gain=self.checks_without_gain + 1)
        return replace(self, checks_without_gain=0, factor=self.factor / self.decay)
