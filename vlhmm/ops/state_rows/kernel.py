"""Rows by state on a GPU; `launch.py` calls these kernels. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def copy_rows(
    per_state, states, rows, place, num_states, num_rows, num_first, H, ROWS: tl.constexpr, BLOCK_H: tl.constexpr
):
    """rows[n] = per_state[states[n]], and place[states[n]] = n for the first. NaN where there is no such state."""
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    state = tl.load(states + n, mask=n < num_rows, other=-1).to(tl.int64)
    known = (state >= 0) & (state < num_states)
    value = tl.load(
        per_state + state[:, None] * H + h[None, :], mask=known[:, None] & (h < H)[None, :], other=float("nan")
    )
    tl.store(rows + n[:, None] * H + h[None, :], value, mask=(n < num_rows)[:, None] & (h < H)[None, :])
    tl.store(place + state, n.to(tl.int32), mask=known & (n < num_first) & (tl.program_id(1) == 0))


@triton.jit
@no_type_check
def write_rows(
    grad, grad_first, states, place, per_state, num_states, num_first, H, ROWS: tl.constexpr, BLOCK_H: tl.constexpr
):
    """per_state[z] = the sum of both gradients' rows place[z] where z is among the first states, else 0.

    What `place` says of other states was never written: a place is one only if that state stands there.
    """
    z = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    n = tl.load(place + z, mask=z < num_states, other=-1).to(tl.int64)
    possible = (n >= 0) & (n < num_first)
    read = possible & (tl.load(states + n, mask=possible, other=-1) == z)
    inside = read[:, None] & (h < H)[None, :]
    at = n[:, None] * H + h[None, :]
    total = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    if grad is not None:
        total += tl.load(grad + at, mask=inside, other=0.0)
    if grad_first is not None:
        total += tl.load(grad_first + at, mask=inside, other=0.0)
    tl.store(per_state + z[:, None] * H + h[None, :], total, mask=(z < num_states)[:, None] & (h < H)[None, :])


@triton.jit
@no_type_check
def add_rows(grad, states, per_state, num_states, num_rows, H, ROWS: tl.constexpr, BLOCK_H: tl.constexpr):
    """per_state[states[n]] += grad[n]; several n may have one state."""
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    state = tl.load(states + n, mask=n < num_rows, other=-1).to(tl.int64)
    inside = ((state >= 0) & (state < num_states))[:, None] & (h < H)[None, :]
    value = tl.load(grad + n[:, None] * H + h[None, :], mask=inside, other=0.0)
    tl.atomic_add(per_state + state[:, None] * H + h[None, :], value, mask=inside, sem="relaxed")
