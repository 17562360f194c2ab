"""The order of positions on a GPU; `launch.py` calls it."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_positions"])
@no_type_check
def order(source, target, own, other, position, num_positions, POSITIONS: tl.constexpr, CHUNK: tl.constexpr):
    """Each position's place: how many have a lesser group, or the same and come before. A program takes some, of one side."""
    side = tl.program_id(1)
    mine, theirs = source, target
    if side == 1:
        mine, theirs = target, source
    here = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    inside = here < num_positions
    group = tl.load(mine + here, mask=inside, other=0).to(tl.int32)
    before = tl.zeros((POSITIONS, CHUNK), dtype=tl.int32)
    for first in range(0, num_positions, CHUNK):
        there = first + tl.arange(0, CHUNK)
        # Padding past the end is not counted.
        compared = tl.load(mine + there, mask=there < num_positions, other=0x7FFFFFFF).to(tl.int32)
        earlier = (there[None, :] < here[:, None]).to(tl.int32)
        before += (compared[None, :] < group[:, None] + earlier).to(tl.int32)
    place = side * num_positions + tl.sum(before, axis=1)
    tl.store(own + place, group, mask=inside)
    tl.store(other + place, tl.load(theirs + here, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(position + place, here, mask=inside)
