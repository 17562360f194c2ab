"""Positions sorted by source group, and by target group."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.groups.order import reference
from vlhmm.ops.groups.order.reference import GroupOrder

__all__ = ["GroupOrder", "group_order", "group_order_by_kernel"]


def group_order(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    if _kernel_takes(source):
        return group_order_by_kernel(source, target)
    return reference.group_order(source, target)


def group_order_by_kernel(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    """`group_order` in one kernel."""
    # Imported here, so that the CPU path does not need Triton.
    from vlhmm.ops.groups.order import launch

    return launch.order(source.contiguous(), target.contiguous())


def _kernel_takes(source: Tensor) -> bool:
    return dispatch.GROUP_ORDER.run(source.dtype, source.device, size=source.numel())
