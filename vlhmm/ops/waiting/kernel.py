"""Bounded polling (spin waits), shared by all kernels with a grid barrier: `ops.waiting` has the reasons."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def report(reports, OPERATION: tl.constexpr, step):
    """This program's wait timed out. One word, so that program and step are written atomically."""
    program = tl.program_id(0).to(tl.int64) + 1
    tl.store(reports + OPERATION, (program << 32) | step)


@triton.jit
@no_type_check
def wait_for_count(arrived, target, polls_left, reports, OPERATION: tl.constexpr, step):
    """Waits until `arrived` has been counted up to `target`, and returns how many polls the next wait may take: 0 where this one has taken all.

    One thread polls and broadcasts the count, so that control flow is uniform: all threads leave the loop together.
    """
    polls = 0
    count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    while (count < target) & (polls < polls_left):
        count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
        polls += 1
    if (count < target) & (polls_left > 0):
        report(reports, OPERATION, step)
        polls_left = 0
    tl.debug_barrier()
    return polls_left
