"""Before and after the backward pass of a dense HMM's recursion: its cotangents, and the gradients of the initial rows.

Each is a small computation, fused into one launch instead of a dozen launches of torch operations. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def ask(
    token_log_probs,
    last,
    underflow_level,
    scale,
    token_cotangent,
    last_cotangent,
    token_asked,
    last_asked,
    last_sum,
    scale_asked,
    num_positions,
    states,
    BLOCK: tl.constexpr,
):
    """A program a sequence: its cotangents, 0 for impossible tokens and states. With underflow all cotangents of the sequence and its scale are 0.

    A cotangent of None is 0.
    """
    row = tl.program_id(0).to(tl.int64)
    trusted = tl.load(underflow_level + row) == 0
    for first in range(0, num_positions, BLOCK):
        t = first + tl.arange(0, BLOCK)
        at = row * num_positions + t
        inside = t < num_positions
        log_prob = tl.load(token_log_probs + at, mask=inside, other=0.0)
        asked = tl.zeros((BLOCK,), dtype=tl.float32)
        if token_cotangent is not None:
            possible = trusted & (tl.abs(log_prob) != float("inf"))
            asked = tl.load(token_cotangent + at, mask=inside & possible, other=0.0)
        tl.store(token_asked + at, asked, mask=inside)
        tl.store(scale_asked + at, tl.load(scale + at, mask=inside & trusted, other=0.0), mask=inside)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, states, BLOCK):
        state = first + tl.arange(0, BLOCK)
        at = row * states + state
        inside = state < states
        asked = tl.zeros((BLOCK,), dtype=tl.float32)
        if last_cotangent is not None:
            possible = trusted & (tl.load(last + at, mask=inside, other=0.0) != 0)
            asked = tl.load(last_cotangent + at, mask=inside & possible, other=0.0)
        tl.store(last_asked + at, asked, mask=inside)
        total += asked
    tl.store(last_sum + row, tl.sum(total, axis=0))


@triton.jit
@no_type_check
def sum_begun(
    posterior,
    init_of,
    result,
    num_positions,
    num_inits,
    states,
    part_positions,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """result[part, i] = the sum of the part's posteriors at positions that begin from initial row i; other positions are not loaded."""
    part = tl.program_id(0).to(tl.int64)
    init = tl.program_id(1)
    state = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    state_in = (state < states)[None, :]
    end = tl.minimum((part + 1) * part_positions, num_positions)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(part * part_positions, end, ROWS):
        position = first + tl.arange(0, ROWS)
        begins = tl.load(init_of + position, mask=position < end, other=-1) == init
        total += tl.load(
            posterior + position[:, None] * states + state[None, :], mask=begins[:, None] & state_in, other=0.0
        )
    at = result + (part * num_inits + init) * states + state
    tl.store(at, tl.sum(total, axis=0), mask=state < states)
