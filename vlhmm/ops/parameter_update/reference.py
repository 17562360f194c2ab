"""The specification of the update: what torch's clipping, AdamW and `lerp_` do, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class AdamW:
    """AdamW hyperparameters."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class Moved:
    """A parameter with everything that an update reads and writes of it."""

    parameter: Float[Tensor, ...]
    gradient: Float[Tensor, ...]
    exp_avg: Float[Tensor, ...]
    exp_avg_sq: Float[Tensor, ...]
    step: Float[Tensor, ""]
    average: Float[Tensor, ...] | None = None
    """Its running average, of all parameters or of none."""


@dataclass(frozen=True)
class Group:
    """Parameters that learn at one rate."""

    rate: Float[Tensor, ""]
    members: list[Moved]


@torch.no_grad()
def update(
    groups: Sequence[Group], adam: AdamW, largest_norm: float, average_weight: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """In place, but for the gradients, whose norm it returns."""
    every = [one for group in groups for one in group.members]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one.gradient) for one in every]))
    # As torch.nn.utils.clip_grad_norm_ has it.
    factor = (largest_norm / (norm + 1e-6)).clamp(max=1.0) if largest_norm < torch.inf else torch.ones_like(norm)
    for group in groups:
        for one in group.members:
            gradient = one.gradient * factor
            one.step.add_(1)
            one.parameter.mul_(1 - group.rate * adam.weight_decay)
            one.exp_avg.lerp_(gradient, 1 - adam.beta1)
            one.exp_avg_sq.lerp_(gradient.square(), 1 - adam.beta2)
            correction = 1 - adam.beta1 ** one.step.double()
            deviation = (one.exp_avg_sq / (1 - adam.beta2 ** one.step.double())).sqrt() + adam.eps
            one.parameter.sub_(group.rate / correction * one.exp_avg / deviation)
            if one.average is not None:
                one.average.lerp_(one.parameter, average_weight.to(one.average))
    return norm
