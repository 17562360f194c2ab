"""Norm and scaling on a GPU; `launch.py` calls them."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def scale(values, factor, count, BLOCK: tl.constexpr):
    """values *= factor; a factor of 1 costs nothing."""
    by = tl.load(factor)
    if by == 1.0:
        return
    programs = tl.num_programs(0).to(tl.int64)
    for piece in range(tl.program_id(0).to(tl.int64), tl.cdiv(count, BLOCK), programs):
        at = piece * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + at, mask=at < count, other=0.0)
        tl.store(values + at, value * by, mask=at < count)


@triton.jit
@no_type_check
def part_norms(values, norms, count, BLOCK: tl.constexpr):
    """Each program's norm of the pieces that it reads."""
    programs = tl.num_programs(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for piece in range(tl.program_id(0).to(tl.int64), tl.cdiv(count, BLOCK), programs):
        at = piece * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + at, mask=at < count, other=0.0)
        total += value * value
    tl.store(norms + tl.program_id(0), tl.sqrt(tl.sum(total, axis=0)))
