"""Named tensors of a saved training, put back where they came from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restores `<parameter>.<name>` of the optimizer's state. Learning rates keep their tensors, which a CUDA graph may have captured."""
    state = optimizer.state_dict()
    for name, value in tensors.items():
        index, key = name.split(".")
        state["state"].setdefault(int(index), {})[key] = value
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it; only these are read."""
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
