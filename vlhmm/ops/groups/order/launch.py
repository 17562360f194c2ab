"""How the kernel of the order is called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.ops.groups.order import kernel
from vlhmm.ops.groups.order.reference import GroupOrder
from vlhmm.ops.sizes import cdiv

POSITIONS = 16
"""Of a program: 2,048 in a window make 256 programs for the two sides, two for each of a Hopper's multiprocessors."""
CHUNK = 512


def order(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    num_positions = source.shape[0]
    own, other, position = (torch.empty(2, num_positions, dtype=torch.int32, device=source.device) for _ in range(3))
    kernel.order[cdiv(num_positions, POSITIONS), 2](
        *(source, target, own, other, position, num_positions), POSITIONS=POSITIONS, CHUNK=CHUNK, num_warps=8
    )
    return GroupOrder(own, other, position)
