"""The order of positions by the groups that they leave, and by those that they enter."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.ops.groups.order import reference
from vlhmm.ops.groups.order.reference import GroupOrder

__all__ = ["GroupOrder", "group_order", "group_order_by_kernel"]

MOST_POSITIONS = 1 << 13
"""All pairs of positions are compared: beyond, sorting is less work."""


def group_order(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    if _kernel_takes(source):
        return group_order_by_kernel(source, target)
    return reference.group_order(source, target)


def group_order_by_kernel(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    """`group_order` in one kernel."""
    # Triton is needed here alone.
    from vlhmm.ops.groups.order import launch

    return launch.order(source.contiguous(), target.contiguous())


def _kernel_takes(source: Tensor) -> bool:
    return (
        source.is_cuda
        and source.numel() <= MOST_POSITIONS
        and torch.cuda.get_device_capability(source.device) >= (8, 0)
        and find_spec("triton") is not None
    )
