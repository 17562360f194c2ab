"""How the kernel of clipping is called. Nothing here asks the device anything, so a CUDA graph can hold it all."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.clipping import kernel
from vlhmm.ops.sizes import pieces

BLOCK = 4096
PROGRAMS = 1056
"""Eight for each of a Hopper's 132 multiprocessors."""


def scale(values: Float[Tensor, ...], factor: Float[Tensor, ""]) -> None:
    """values *= factor, in place."""
    count = values.numel()
    kernel.scale[(min(PROGRAMS, pieces(count, BLOCK)),)](values, factor, count, BLOCK=BLOCK, num_warps=8)
