"""How the kernels of clipping are called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.clipping import kernel
from vlhmm.ops.sizes import cdiv

BLOCK = 4096
PROGRAMS = 1056
"""Eight for each of a Hopper's 132 multiprocessors."""


def scale(values: Float[Tensor, ...], factor: Float[Tensor, ""]) -> None:
    """values *= factor, in place."""
    count = values.numel()
    kernel.scale[(min(PROGRAMS, cdiv(count, BLOCK)),)](values, factor, count, BLOCK=BLOCK, num_warps=8)


def part_norms(values: Float[Tensor, ...]) -> Float[Tensor, " programs"]:
    """The norms of parts, whose norm is that of all values."""
    count = values.numel()
    programs = min(PROGRAMS, cdiv(count, BLOCK))
    norms = torch.empty(programs, device=values.device)
    kernel.part_norms[(programs,)](values, norms, count, BLOCK=BLOCK, num_warps=8)
    return norms
