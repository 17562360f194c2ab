"""What a step does with gradients beside torch's own optimizer: AdamW by kernels, and the running average of the weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.parameter_update import AdamW, Group, Moved, update_by_kernels

SMALL = 1 << 18
"""Numbers of a tensor: with fewer a launch of its own costs more than moving them twice."""


def adam_by_kernels(
    optimizer: torch.optim.AdamW, pairs: list[tuple[Tensor, Tensor]], largest_norm: float, average_weight: Tensor
) -> Float[Tensor, ""]:
    """Clipping, the optimizer's step and the averages in one pass over all; the optimizer holds its rates and state as ever.

    `pairs`: parameters behind their running averages, those that have one. The gradient's norm.
    """
    average_of = {parameter: average for average, parameter in pairs}
    groups = []
    for group in optimizer.param_groups:
        members = [_moved(optimizer, parameter, average_of.get(parameter)) for parameter in group["params"]]
        rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=average_weight.device)
        groups.append(Group(rate, members))
    some = optimizer.param_groups[0]
    beta1, beta2 = some["betas"]
    adam = AdamW(beta1, beta2, some["eps"], some["weight_decay"])
    return update_by_kernels(groups, adam, largest_norm, average_weight)


def _moved(optimizer: torch.optim.AdamW, parameter: Tensor, average: Tensor | None) -> Moved:
    state = optimizer.state[parameter]
    if not state:
        # Initialise the optimizer's state as its first step would.
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    assert parameter.grad is not None, "every parameter has a gradient, though it be zeros"
    return Moved(parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"], average)


@torch.no_grad()
def move_averages(pairs: list[tuple[Tensor, Tensor]], weight: Float[Tensor, ""]) -> None:
    """Each running average towards the parameter behind it, by that weight."""
    for average, parameter in pairs:
        if parameter.numel() >= SMALL:
            average.lerp_(parameter, weight)
    small = [pair for pair in pairs if pair[0].numel() < SMALL]
    if small:
        # Multi-tensor (foreach) operations: three launches for all parameters.
        averages: list[Tensor] = [average for average, _ in small]
        current: list[Tensor] = [parameter for _, parameter in small]
        moves = torch._foreach_sub(current, averages)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(averages, moves)
