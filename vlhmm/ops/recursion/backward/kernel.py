"""The backward pass of a dense HMM's recursion on a GPU: `ops.recursion.dense` calls its kernel, and `ops.recursion.kernel` defines
the symbols and the tiling of the work.

No normaliser has to be reduced across programs: with B_t = Q_t / alpha_t, the sum of F_t is g_t+1, the cotangent of the next token, so

    B_t = A (B_t+1 e_t+1 / c_t+1) + g_t - g_t+1.

Rounding makes the sum inexact; the difference is added to every entry one step later, so that errors do not accumulate.

B_t is Q_t over alpha_t, and r_t is Q_t over the predicted probability of a state. Both overflow float32 if a state has a near-zero
filtered probability and a large posterior. Only such states are left out; the correction above gives their share of Q to the other
states.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.exponentials.kernel import SMALLEST_NORMAL, emission_weight
from vlhmm.ops.recursion.kernel import grid_barrier, matrix_product

MAX_VALUE = tl.constexpr(2.0**126)
MAX_RATIO = tl.constexpr(2.0**112)


@triton.jit
@no_type_check
def reached_by(message, backed):
    """The states that take part in the backward pass. NaN is propagated, so that errors show."""
    return (message > 0) & ~(tl.abs(backed) > MAX_VALUE)


@triton.jit
@no_type_check
def carried_back(value, weight, carries):
    """value x weight, or 0 if that would overflow; NaN is propagated, so that errors show."""
    r = value * weight
    return tl.where(carries & ~(tl.abs(r) > MAX_RATIO), r, 0.0)


@triton.jit(do_not_specialize=["polls_left", "first_step", "end_step"])
@no_type_check
def backward_steps(
    ratio,
    messages,
    tile,
    log_rows,
    peaks,
    row_of,
    posterior,
    init_of,
    lengths,
    scale,
    token_cotangent,
    last_cotangent,
    last_cotangent_sum,
    sums,
    flow,
    product,
    arrived,
    reports,
    polls_left,
    size,
    num_positions,
    states,
    first_step,
    end_step,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    PERSISTENT: tl.constexpr,
    FUSED: tl.constexpr,
    OPERATION: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
):
    """Step s makes r and Q of position t = T - 1 - s from r of position t + 1; the last one the flow into log_previous."""
    parts = tl.cdiv(states, COLUMNS)
    row_tiles = tl.cdiv(size, ROWS)
    slot_size = tl.cast(size, tl.int64) * states
    for step in tl.range(first_step, end_step, num_stages=1):
        t = num_positions - 1 - step
        for index in tl.range(tl.program_id(0), row_tiles * parts, tl.num_programs(0), num_stages=1):
            part = index // row_tiles
            rows = (index % row_tiles) * ROWS + tl.arange(0, ROWS)
            columns = part * COLUMNS + tl.arange(0, COLUMNS)
            in_batch = rows < size
            in_tile = in_batch[:, None] & (columns < states)[None, :]
            at = rows[:, None].to(tl.int64) * states + columns[None, :]
            length = tl.load(lengths + rows, mask=in_batch, other=0)
            per_position = rows.to(tl.int64) * num_positions + t
            next_moves = t + 1 < length
            next_moves = next_moves & (tl.load(init_of + per_position + 1, mask=next_moves, other=0) < 0)
            # The rounding error of the sum of F at t + 1, which should equal the cotangent of token t + 2.
            known = next_moves & (t + 2 < length)
            known = known & (tl.load(init_of + per_position + 2, mask=known, other=0) < 0)
            every_part = tl.arange(0, PARTS)
            flow_sums = tl.load(
                sums + ((t + 1) * tl.cast(size, tl.int64) + rows[:, None]) * parts + every_part[None, :],
                mask=known[:, None] & (every_part < parts)[None, :],
                other=0.0,
            )
            missing = tl.load(token_cotangent + per_position + 2, mask=known, other=0.0) - tl.sum(flow_sums, 1)
            # Loaded before the product, which hides the memory latency.
            message = tl.load(messages + (t + 1) * slot_size + at, mask=in_tile, other=0.0)
            within = (t >= 0) & (t < length)
            weight = emission_weight(log_rows, peaks, row_of, per_position, columns, states, within, in_tile)
            if FUSED:
                backed = matrix_product(
                    ratio + (t + 1) * slot_size,
                    tile,
                    rows,
                    columns,
                    size,
                    states,
                    tl.max(next_moves.to(tl.int32), 0) * states,
                    1,
                    states,
                    ROWS,
                    COLUMNS,
                    INNER,
                    INPUT_PRECISION,
                )
            else:
                backed = tl.load(product + at, mask=in_tile, other=0.0)
            backed = tl.where(next_moves[:, None], backed + missing[:, None], 0.0)
            if PERSISTENT:
                backed = tl.where(polls_left > 0, backed, float("nan"))
            if t >= 0:
                ends = (t == length - 1) & in_batch
                asked_of_last = tl.load(last_cotangent + at, mask=in_tile & ends[:, None] & (message > 0), other=0.0)
                backed = tl.where(ends[:, None], asked_of_last / tl.maximum(message, SMALLEST_NORMAL), backed)
                reached = reached_by(message, backed)
                flow_sum = tl.load(token_cotangent + per_position + 1, mask=next_moves, other=0.0)
                flow_sum += tl.load(last_cotangent_sum + rows, mask=ends, other=0.0)
                asked = tl.load(token_cotangent + per_position, mask=within, other=0.0)
                value = backed + (asked - flow_sum)[:, None]
                total = tl.load(scale + per_position, mask=within, other=0.0)
                # The cotangent of a state that is not reached may be arbitrarily large.
                probability = tl.where(within[:, None] & reached, message * value, 0.0)
                if NONNEGATIVE:
                    probability = tl.where(probability < 0, 0.0, probability)
                tl.store(posterior + per_position[:, None] * states + columns[None, :], probability, mask=in_tile)
                moves = within & (total > 0)
                moves = moves & (tl.load(init_of + per_position, mask=within, other=0) < 0)
                carries = moves[:, None] & reached & (weight > 0)
                r = carried_back(value, weight / tl.where(moves, total, 1.0)[:, None], carries)
                tl.store(ratio + t * slot_size + at, r.to(ratio.dtype.element_ty), mask=in_tile)
                sums_at = (t * tl.cast(size, tl.int64) + rows) * parts + part
                tl.store(sums + sums_at, tl.sum(tl.where(reached, message * backed, 0.0), 1), mask=in_batch)
            else:
                tl.store(flow + at, tl.where(reached_by(message, backed), message * backed, 0.0), mask=in_tile)
        if PERSISTENT:
            polls_left = grid_barrier(arrived, (step + 1) * tl.num_programs(0), polls_left, reports, OPERATION, step)
