"""Rows by state on a GPU; `launch.py` calls these kernels. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def copy_rows(
    per_state,
    per_block,
    states,
    rows,
    place,
    num_states,
    states_per_block,
    num_rows,
    num_first,
    H,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """rows[n] = per_state[states[n]], and place[states[n]] = n for the first. NaN where there is no such state.

    With `per_block` its row of the state's block stands to the left.
    """
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    state = tl.load(states + n, mask=n < num_rows, other=-1).to(tl.int64)
    known = (state >= 0) & (state < num_states)
    read, written = known[:, None] & (h < H)[None, :], (n < num_rows)[:, None] & (h < H)[None, :]
    value = tl.load(per_state + state[:, None] * H + h[None, :], mask=read, other=float("nan"))
    if per_block is None:
        tl.store(rows + n[:, None] * H + h[None, :], value, mask=written)
    else:
        block = state // states_per_block
        left = tl.load(per_block + block[:, None] * H + h[None, :], mask=read, other=float("nan"))
        tl.store(rows + n[:, None] * 2 * H + h[None, :], left, mask=written)
        tl.store(rows + n[:, None] * 2 * H + H + h[None, :], value, mask=written)
    tl.store(place + state, n.to(tl.int32), mask=known & (n < num_first) & (tl.program_id(1) == 0))


@triton.jit
@no_type_check
def write_rows(
    grad,
    grad_first,
    states,
    place,
    per_state,
    num_states,
    num_first,
    H,
    grad_stride,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """per_state[z] = the sum of both gradients' rows place[z] where z is among the first states, else 0.

    `place` is uninitialised for other states: an entry is valid only if that state is at this place.
    """
    z = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    n = tl.load(place + z, mask=z < num_states, other=-1).to(tl.int64)
    possible = (n >= 0) & (n < num_first)
    read = possible & (tl.load(states + n, mask=possible, other=-1) == z)
    inside = read[:, None] & (h < H)[None, :]
    at = n[:, None] * grad_stride + h[None, :]
    total = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    if grad is not None:
        total += tl.load(grad + at, mask=inside, other=0.0)
    if grad_first is not None:
        total += tl.load(grad_first + at, mask=inside, other=0.0)
    tl.store(per_state + z[:, None] * H + h[None, :], total, mask=(z < num_states)[:, None] & (h < H)[None, :])


@triton.jit
@no_type_check
def sum_rows(grad, grad_first, per_block, rows_per_block, H, grad_stride, ROWS: tl.constexpr, BLOCK_H: tl.constexpr):
    """per_block[b] = the sum of both gradients' rows from b * rows_per_block on, so many."""
    block = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    total = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    # Software pipelining: rows are prefetched while earlier ones are added.
    for begin in tl.range(0, rows_per_block, ROWS, num_stages=3):
        row = begin + tl.arange(0, ROWS)
        inside = (row < rows_per_block)[:, None] & (h < H)[None, :]
        at = (block * rows_per_block + row)[:, None] * grad_stride + h[None, :]
        if grad is not None:
            total += tl.load(grad + at, mask=inside, other=0.0)
        if grad_first is not None:
            total += tl.load(grad_first + at, mask=inside, other=0.0)
    tl.store(per_block + block * H + h, tl.sum(total, axis=0), mask=h < H)


@triton.jit
@no_type_check
def add_rows(
    grad,
    states,
    table,
    num_states,
    states_per_row,
    num_rows,
    H,
    grad_stride,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """table[states[n] // states_per_row] += grad[n]; several n may have one row."""
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    state = tl.load(states + n, mask=n < num_rows, other=-1).to(tl.int64)
    inside = ((state >= 0) & (state < num_states))[:, None] & (h < H)[None, :]
    value = tl.load(grad + n[:, None] * grad_stride + h[None, :], mask=inside, other=0.0)
    row = state // states_per_row
    tl.atomic_add(table + row[:, None] * H + h[None, :], value, mask=inside, sem="relaxed")
