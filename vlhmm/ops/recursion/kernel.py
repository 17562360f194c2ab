"""The recursion on a GPU when every position takes the one tile: a dense HMM. `dense.py` calls these kernels.

The mathematics is that of `scaled`. A program owns a tile of the message (sequences x states) at every position, and a
barrier over the whole grid ends each position: 64 dependent steps cost 64 barriers instead of 64 launches.

A program whose wait reaches its bound writes NaN, see `ops.waiting`.

A row's sum must be known to normalise it, but only the next barrier makes it known. So a message is written raw,
beside its sum over each tile of states, and its readers divide by the sum. `ops.recursion.backward.kernel` has the backward pass.

How factors are scaled, and emissions read, is in `ops.recursion.exponentials.kernel`.

ROWS x COLUMNS is a program's tile, INNER the source states it takes at a time; the states are cut into `parts` tiles.
Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.exponentials.kernel import (
    LIFT,
    LOG_LIFT,
    SMALLEST_NORMAL,
    emission_weight,
    finite_or_zero,
    lifted_exp,
)
from vlhmm.ops.rounding.kernel import nearest_tf32
from vlhmm.ops.waiting.kernel import wait_for_count

MAX_TOTAL = tl.constexpr(2.0**100)
# Of a sum of products: above the first as precise as any, above the second also where messages have underflowed.
SMALLEST_PRECISE = tl.constexpr(2.0**-103)
OUTWEIGHS = tl.constexpr(2.0**-71)


@triton.jit
@no_type_check
def inverse_of(total, divides):
    """1 / total where it `divides`, else 1. Next to the smallest numbers an inverse is infinite: there the message sums to less than 1."""
    return 1.0 / tl.where(divides & (total > 0), tl.maximum(total, SMALLEST_NORMAL), 1.0)


@triton.jit
@no_type_check
def store_least(lows, at, plane, joint, predicted, weight, in_batch):
    """The smallest number of a message among the states that are reached and possible, 0 where it underflows; then the smallest
    prediction of a state that the word makes possible."""
    tl.store(lows + at, tl.min(tl.where((predicted > 0) & (weight > 0), joint, float("inf")), 1), mask=in_batch)
    tl.store(lows + plane + at, tl.min(tl.where(weight > 0, predicted, float("inf")), 1), mask=in_batch)


@triton.jit
@no_type_check
def grid_barrier(arrived, target, polls_left, reports, OPERATION: tl.constexpr, step):
    """Wait until `arrived` has been counted up to `target`: what any program wrote before, all read after. Returns what is left of
    `polls_left`."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")
    return wait_for_count(arrived, target, polls_left, reports, OPERATION, step)


@triton.jit
@no_type_check
def matrix_product(
    left,
    right,
    rows,
    columns,
    size,
    states,
    limit,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """left[rows] @ right[:, columns], over the first `limit` of the inner axis: 0 of them where nothing is needed."""
    inner = tl.arange(0, INNER)
    left_at = left + rows[:, None].to(tl.int64) * states + inner[None, :]
    right_at = right + inner[:, None].to(tl.int64) * row_stride + columns[None, :].to(tl.int64) * column_stride
    result = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, limit, INNER):
        here = first + inner < states
        some_left = tl.load(left_at, mask=(rows < size)[:, None] & here[None, :], other=0.0)
        some_right = tl.load(right_at, mask=here[:, None] & (columns < states)[None, :], other=0.0)
        some_left, some_right = nearest_tf32(some_left, INPUT_PRECISION), nearest_tf32(some_right, INPUT_PRECISION)
        result = tl.dot(some_left, some_right, result, input_precision=INPUT_PRECISION)
        left_at += INNER
        right_at += INNER * row_stride
    return result


@triton.jit(do_not_specialize=["polls_left", "first_step", "end_step"])
@no_type_check
def forward_steps(
    operand,
    messages,
    tile,
    log_rows,
    peaks,
    row_of,
    inits,
    init_of,
    lengths,
    sums,
    lows,
    product,
    arrived,
    reports,
    polls_left,
    size,
    num_positions,
    states,
    slots,
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
):
    """Step t divides message t - 1 by its sum and makes message t; the step after the last position only divides."""
    parts = tl.cdiv(states, COLUMNS)
    row_tiles = tl.cdiv(size, ROWS)
    slot_size = tl.cast(size, tl.int64) * states
    # One stage: the reads of a step must not be moved before the barrier that makes them valid.
    for t in tl.range(first_step, end_step, num_stages=1):
        for index in tl.range(tl.program_id(0), row_tiles * parts, tl.num_programs(0), num_stages=1):
            # Programs side by side share their columns of the tile.
            part = index // row_tiles
            rows = (index % row_tiles) * ROWS + tl.arange(0, ROWS)
            columns = part * COLUMNS + tl.arange(0, COLUMNS)
            in_batch = rows < size
            in_tile = in_batch[:, None] & (columns < states)[None, :]
            at = rows[:, None].to(tl.int64) * states + columns[None, :]
            length = tl.load(lengths + rows, mask=in_batch, other=0)
            every_part = tl.arange(0, PARTS)
            sums_before = tl.load(
                sums + (t * tl.cast(size, tl.int64) + rows[:, None]) * parts + every_part[None, :],
                mask=in_batch[:, None] & (every_part < parts)[None, :],
                other=0.0,
            )
            total = tl.sum(sums_before, 1)
            # A message that was carried over past the length has been divided already.
            inverse = inverse_of(total, t <= length)
            before = tl.load(messages + (t % slots) * slot_size + at, mask=in_tile, other=0.0) * inverse[:, None]
            tl.store(messages + (t % slots) * slot_size + at, before, mask=in_tile)
            if t < num_positions:
                within = t < length
                following = messages + ((t + 1) % slots) * slot_size + at
                tl.store(following, before, mask=in_tile & (~within)[:, None])
                init = tl.load(init_of + rows.to(tl.int64) * num_positions + t, mask=in_batch, other=0)
                begins = init >= 0
                moves = within & (init < 0)
                # Read before the product, so that the product hides the wait.
                per_position = rows.to(tl.int64) * num_positions + t
                weight = emission_weight(log_rows, peaks, row_of, per_position, columns, states, within, in_tile)
                # What has once become impossible stays so, also when the states begin anew.
                begun = tl.load(
                    inits + init[:, None].to(tl.int64) * states + columns[None, :],
                    mask=in_tile & (begins & (total > 0))[:, None],
                    other=0.0,
                )
                if FUSED:
                    predicted = matrix_product(
                        operand + (t % 2) * slot_size,
                        tile,
                        rows,
                        columns,
                        size,
                        states,
                        tl.max(moves.to(tl.int32), 0) * states,
                        states,
                        1,
                        ROWS,
                        COLUMNS,
                        INNER,
                        INPUT_PRECISION,
                    )
                else:
                    predicted = tl.load(product + at, mask=in_tile, other=0.0)
                predicted = tl.where(begins[:, None], begun, predicted * inverse[:, None])
                if PERSISTENT:
                    predicted = tl.where(polls_left > 0, predicted, float("nan"))
                # Past the length nothing divides: it would grow without end.
                joint = tl.where(within[:, None], predicted * weight, 0.0)
                tl.store(following, joint, mask=in_tile & within[:, None])
                raw = operand + ((t + 1) % 2) * slot_size + at
                tl.store(raw, joint.to(operand.dtype.element_ty), mask=in_tile)
                sums_at = ((t + 1) * tl.cast(size, tl.int64) + rows) * parts + part
                tl.store(sums + sums_at, tl.sum(joint, 1), mask=in_batch)
                low_at = (t * tl.cast(size, tl.int64) + rows) * parts + part
                plane = tl.cast(size, tl.int64) * num_positions * parts
                store_least(lows, low_at, plane, joint, predicted, weight, in_batch)
        if PERSISTENT:
            polls_left = grid_barrier(arrived, (t + 1) * tl.num_programs(0), polls_left, reports, OPERATION, t)


@triton.jit
@no_type_check
def finish(
    sums,
    lows,
    peaks,
    row_of,
    init_peak,
    extent,
    least_before,
    init_of,
    lengths,
    token_log_probs,
    log_prob,
    scale,
    underflow,
    size,
    num_positions,
    parts,
    SMALLEST_TOTAL: tl.constexpr,
    SMALLEST_MESSAGE: tl.constexpr,
    POSITIONS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """For one sequence: log p of its tokens and of the whole from the sums, and whether numbers came near the smallest of their type: 1 where
    single messages did and may matter, 2 where the sum of a step did.

    What underflows on the way of a message is less than 2^-126 a product, what underflowed in the message itself brings a state
    less than 2^-94: it does not matter where every state that the next word makes possible gets so much more that this is beneath
    the rounding. Where one gets nothing it may be impossible, or all it would get has underflowed.
    """
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    tile_peak = finite_or_zero(tl.load(extent + 1))
    least_move, lowest_move = lifted_exp(tl.load(extent) - tile_peak), lifted_exp(tl.load(extent + 2) - tile_peak)
    # At which a GPU's products stop.
    least_move = tl.where(least_move < SMALLEST_NORMAL, 0.0, least_move)
    underflow_level = 0
    part = tl.arange(0, PARTS)
    # A million terms of one sign lose digits in float32.
    whole = tl.zeros((POSITIONS,), dtype=tl.float64)
    for first in range(0, num_positions, POSITIONS):
        t = first + tl.arange(0, POSITIONS)
        in_text = t < num_positions
        within = t < length
        mask = within[:, None] & (part < parts)[None, :]
        step = (t[:, None].to(tl.int64) * size + row) * parts + part[None, :]
        total = tl.sum(tl.load(sums + tl.cast(size, tl.int64) * parts + step, mask=mask, other=0.0), 1)
        low = tl.min(tl.load(lows + step, mask=mask, other=float("inf")), 1)
        # The message before, of which the first was given: its sum counts as 1.
        total_before = tl.sum(tl.load(sums + step, mask=mask, other=0.0), 1)
        step_before = step - tl.cast(size, tl.int64) * parts
        low_before = tl.min(tl.load(lows + step_before, mask=mask & (t > 0)[:, None], other=float("inf")), 1)
        low_before = tl.where(t > 0, low_before, tl.load(least_before + row))
        plane = tl.cast(size, tl.int64) * num_positions * parts
        predicted = tl.min(tl.load(lows + plane + step, mask=mask, other=float("inf")), 1)
        init = tl.load(init_of + row * num_positions + t, mask=within, other=-1)
        begin_peak = tl.load(init_peak + init, mask=within & (init >= 0), other=0.0)
        shift = tl.where(init >= 0, begin_peak, tile_peak)
        emitted = tl.load(row_of + row * num_positions + t, mask=within, other=0).to(tl.int64)
        shift += tl.load(peaks + emitted, mask=within, other=0.0)
        # Both lifts are taken out, of what can bear it by a division that rounds nothing.
        large = total > 1.0
        log_total = tl.log(tl.where(large, total / (LIFT * LIFT), tl.where(total > 0, total, 1.0)))
        log_total -= tl.where(large, 0.0, 2 * LOG_LIFT)
        token = tl.where(total > 0, log_total + shift, float("-inf"))
        token = tl.where(total < MAX_TOTAL, token, float("nan"))
        token = tl.where(within, token, 0.0)
        whole += token.to(tl.float64)
        tl.store(token_log_probs + row * num_positions + t, token, mask=in_text)
        tl.store(scale + row * num_positions + t, tl.where(within, total, 1.0), mask=in_text)
        predicted = tl.minimum(predicted, 1.0) * total_before
        underflow_risk = low_before < tl.maximum(SMALLEST_MESSAGE * total_before, SMALLEST_PRECISE)
        vanishing = tl.minimum(low_before, 1.0) * least_move < SMALLEST_NORMAL
        underflows = (underflow_risk & (predicted < OUTWEIGHS)) | (vanishing & (predicted < SMALLEST_PRECISE))
        underflows = underflows & within & (init < 0)
        # Of the word that follows the last nothing is known.
        underflow_risk = low < tl.maximum(SMALLEST_MESSAGE * total, SMALLEST_PRECISE)
        underflows = underflows | ((t + 1 == length) & underflow_risk & (total * lowest_move < OUTWEIGHS))
        lost = within & (total < SMALLEST_TOTAL)
        underflow_level = tl.maximum(
            underflow_level, tl.max(tl.maximum(underflows.to(tl.int32), 2 * lost.to(tl.int32)), 0)
        )
    tl.store(log_prob + row, tl.sum(whole, 0).to(tl.float32))
    tl.store(underflow + row, underflow_level.to(tl.int8))
