"""row_logsumexp on a GPU, called by `launch.py`: logits live in one tile at a time, as in flash attention.

The forward pass takes log_sum_z = log sum_y exp(out_z . in_y) with a running peak and sum. When `out` needs a
gradient it also takes mean_z = sum_y p(y | z) in_y from the tile it already holds: the gradient of `out` is then
grad_z mean_z, and only the gradient of `into` has to make the logits again. Together 8 Z Y H operations instead of the
10 of making them once for each output, and no atomics: each program owns the rows it writes.

Operands are packed first: rows padded to whole tiles and columns to a width that tensor cores take, with zeros;
a row of `into` with -inf in it is dead (p(y | z) = 0), and its features are zeros too, so that no product is 0 times -inf = NaN.
Then the loops need no masks.

If a mask of live rows of `into` is given, these are packed first, and the loops end behind them. Their number stays on
the device: no host-device synchronisation, shapes are the same for every draw, and dead rows cost nothing.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
@no_type_check
def tiles_of_split(num_streamed, BLOCK_COLUMNS: tl.constexpr):
    """The first tile of this program's part of the streamed operand, and the one behind its last."""
    num_tiles = tl.cdiv(num_streamed, BLOCK_COLUMNS)
    tiles_per_split = tl.cdiv(num_tiles, tl.num_programs(1))
    first = tl.program_id(1) * tiles_per_split
    return first, tl.minimum(first + tiles_per_split, num_tiles)


@triton.jit
@no_type_check
def pack(
    operand_ptr,
    features_ptr,
    barrier_ptr,
    place_ptr,
    num_live_ptr,
    num_rows,
    row_stride,
    column_stride,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    source = operand_ptr + row[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    dead = tl.max((value == float("-inf")).to(tl.int32), axis=1) == 1
    place = row
    if place_ptr is not None:
        place = tl.load(place_ptr + row, mask=row < num_rows, other=row)
        dead = dead | (place >= tl.load(num_live_ptr))
    value = tl.where(dead[:, None], 0.0, value)
    target = features_ptr + place[:, None] * PADDED_WIDTH + column[None, :]
    tl.store(target, value.to(features_ptr.dtype.element_ty), mask=(column < PADDED_WIDTH)[None, :])
    tl.store(barrier_ptr + place, tl.where(dead | (row >= num_rows), float("-inf"), 0.0))


@triton.jit
@no_type_check
def forward(
    out_ptr,
    into_ptr,
    barrier_ptr,
    bias_ptr,
    num_live_ptr,
    log_sum_ptr,
    mean_ptr,
    num_rows,
    num_into,
    WIDTH: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Keeps a tile of `out`, streams `into`: log_sum (splits, Z), mean (splits, Z, H)."""
    PADDED: tl.constexpr = MAIN + REST
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    split = tl.program_id(1).to(tl.int64)
    num_columns = num_into
    if num_live_ptr is not None:
        num_columns = tl.load(num_live_ptr)
    first_tile, last_tile = tiles_of_split(num_columns, BLOCK_COLUMNS)
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    main = tl.arange(0, MAIN)

    out_tile = out_ptr + first_row * PADDED + row[:, None] * PADDED
    into_tile = into_ptr + first_tile.to(tl.int64) * BLOCK_COLUMNS * PADDED + column[:, None] * PADDED
    out = tl.load(out_tile + main[None, :])
    mean = tl.zeros((BLOCK_ROWS, MAIN), tl.float32)
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        out_rest = tl.load(out_tile + rest[None, :])
        mean_rest = tl.zeros((BLOCK_ROWS, REST), tl.float32)

    # In units of log 2: the hardware's exponential is exp2.
    peak = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    for tile in range(first_tile, last_tile):
        into = tl.load(into_tile + main[None, :])
        logits = tl.dot(out, into.T, input_precision=INPUT_PRECISION)
        if REST > 0:
            into_rest = tl.load(into_tile + rest[None, :])
            logits = tl.dot(out_rest, into_rest.T, logits, input_precision=INPUT_PRECISION)
        barrier = tl.load(barrier_ptr + tile * BLOCK_COLUMNS + column)
        if bias_ptr is not None:
            barrier += tl.load(bias_ptr + tile * BLOCK_COLUMNS + column) * LOG2_E
        logits = logits * LOG2_E + barrier[None, :]
        new_peak = tl.maximum(peak, tl.max(logits, axis=1))
        # The running maximum is -inf while all columns were dead, and -inf - -inf would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        prob = tl.exp2(logits - shift[:, None])
        shrink = tl.exp2(peak - shift)
        total = total * shrink + tl.sum(prob, axis=1)
        peak = new_peak
        if WITH_MEAN:
            operand = prob.to(into.dtype)
            mean = tl.dot(operand, into, mean * shrink[:, None], input_precision=INPUT_PRECISION)
            if REST > 0:
                mean_rest = tl.dot(operand, into_rest, mean_rest * shrink[:, None], input_precision=INPUT_PRECISION)
        into_tile += BLOCK_COLUMNS * PADDED

    # A row without a live column: the peak is -inf, and so becomes the log of the sum; the mean is 0.
    total = tl.where(total == 0.0, 1.0, total)
    inside = first_row + row < num_rows
    result_row = split * num_rows + first_row + row
    tl.store(log_sum_ptr + result_row, (peak + tl.log2(total)) * LN_2, mask=inside)
    if WITH_MEAN:
        scale = 1.0 / total
        mean_row = mean_ptr + result_row[:, None] * WIDTH
        tl.store(mean_row + main[None, :], mean * scale[:, None], mask=inside[:, None] & (main < WIDTH)[None, :])
        if REST > 0:
            tl.store(
                mean_row + rest[None, :], mean_rest * scale[:, None], mask=inside[:, None] & (rest < WIDTH)[None, :]
            )


@triton.jit
@no_type_check
def join(
    log_sum_ptr,
    mean_ptr,
    whole_ptr,
    whole_mean_ptr,
    num_splits,
    num_rows,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """log_sum (Z) and mean (Z, H) of all parts, whose own are (splits, Z) and (splits, Z, H): a program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_WIDTH)
    peak = float("-inf")
    total = 0.0
    mean = tl.zeros((BLOCK_WIDTH,), tl.float32)
    for first in range(0, num_splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        part_row = split.to(tl.int64) * num_rows + row
        log_sum = tl.load(log_sum_ptr + part_row, mask=split < num_splits, other=float("-inf"))
        inside = (split < num_splits)[:, None] & (column < WIDTH)[None, :]
        part_mean = tl.load(mean_ptr + part_row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        new_peak = tl.maximum(peak, tl.max(log_sum, axis=0))
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight = tl.exp2((log_sum - shift) * LOG2_E)
        shrink = tl.exp2((peak - shift) * LOG2_E)
        total = total * shrink + tl.sum(weight, axis=0)
        mean = mean * shrink + tl.sum(weight[:, None] * part_mean, axis=0)
        peak = new_peak
    # As in `forward`.
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(whole_ptr + row, peak + tl.log2(total) * LN_2)
    tl.store(whole_mean_ptr + row * WIDTH + column, mean / total, mask=column < WIDTH)


@triton.jit
@no_type_check
def grad_out(
    mean_ptr,
    grad_ptr,
    others_ptr,
    result_ptr,
    num_rows,
    others_row_stride,
    others_column_stride,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """result_z = grad_z mean_z + others_z."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    grad = tl.load(grad_ptr + row, mask=row < num_rows, other=0.0)
    at = row[:, None] * WIDTH + column[None, :]
    result = grad[:, None] * tl.load(mean_ptr + at, mask=inside, other=0.0)
    if others_ptr is not None:
        others = others_ptr + row[:, None] * others_row_stride + column.to(tl.int64)[None, :] * others_column_stride
        result += tl.load(others, mask=inside, other=0.0).to(tl.float32)
    tl.store(result_ptr + at, result.to(result_ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def make_shift(log_sum_ptr, grad_ptr, shift_ptr, padded_grad_ptr, num_rows, num_padded, BLOCK_ROWS: tl.constexpr):
    """What `grad_into` reads of each row, in units of log 2 and padded.

    Padding, and rows that reach no live column, have the sum 0: a shift of +inf makes their p(y | z) zero.
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    log_sum = tl.load(log_sum_ptr + row, mask=row < num_rows, other=float("-inf"))
    shift = tl.where(log_sum == float("-inf"), float("inf"), log_sum * LOG2_E)
    tl.store(shift_ptr + row, shift, mask=row < num_padded)
    grad = tl.load(grad_ptr + row, mask=row < num_rows, other=0.0)
    tl.store(padded_grad_ptr + row, grad, mask=row < num_padded)


@triton.jit
@no_type_check
def grad_into(
    out_ptr,
    into_ptr,
    barrier_ptr,
    bias_ptr,
    num_live_ptr,
    shift_ptr,
    grad_ptr,
    others_ptr,
    result_ptr,
    grad_bias_ptr,
    num_out,
    num_into,
    others_row_stride,
    others_column_stride,
    WIDTH: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Keeps a tile of `into`, streams `out`: result (splits, Y, H), and with a bias its gradient (splits, Y)."""
    PADDED: tl.constexpr = MAIN + REST
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    split = tl.program_id(1).to(tl.int64)
    first_tile, last_tile = tiles_of_split(num_out, BLOCK_COLUMNS)
    if num_live_ptr is not None:
        # All rows of this tile are dead: nothing is streamed.
        last_tile = tl.where(first_row < tl.load(num_live_ptr), last_tile, first_tile)
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    main = tl.arange(0, MAIN)

    into_tile = into_ptr + first_row * PADDED + row[:, None] * PADDED
    out_tile = out_ptr + first_tile.to(tl.int64) * BLOCK_COLUMNS * PADDED + column[:, None] * PADDED
    into = tl.load(into_tile + main[None, :])
    result = tl.zeros((BLOCK_ROWS, MAIN), tl.float32)
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        into_rest = tl.load(into_tile + rest[None, :])
        result_rest = tl.zeros((BLOCK_ROWS, REST), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + first_row + row) * LOG2_E
        grad_bias = tl.zeros((BLOCK_ROWS,), tl.float32)

    for tile in range(first_tile, last_tile):
        out = tl.load(out_tile + main[None, :])
        logits = tl.dot(into, out.T, input_precision=INPUT_PRECISION)
        if REST > 0:
            out_rest = tl.load(out_tile + rest[None, :])
            logits = tl.dot(into_rest, out_rest.T, logits, input_precision=INPUT_PRECISION)
        shift = tl.load(shift_ptr + tile * BLOCK_COLUMNS + column)
        grad = tl.load(grad_ptr + tile * BLOCK_COLUMNS + column)
        exponent = logits * LOG2_E - shift[None, :]
        if bias_ptr is not None:
            exponent += bias[:, None]
        weight = tl.exp2(exponent) * grad[None, :]
        if bias_ptr is not None:
            grad_bias += tl.sum(weight, axis=1)
        operand = weight.to(out.dtype)
        result = tl.dot(operand, out, result, input_precision=INPUT_PRECISION)
        if REST > 0:
            result_rest = tl.dot(operand, out_rest, result_rest, input_precision=INPUT_PRECISION)
        out_tile += BLOCK_COLUMNS * PADDED

    target = first_row + row
    # Dead rows were packed as zeros: their result is meaningless, even infinite, so it is masked.
    live = (tl.load(barrier_ptr + target) == 0.0)[:, None]
    inside = (target < num_into)[:, None]
    if bias_ptr is not None:
        tl.store(grad_bias_ptr + split * num_into + target, grad_bias, mask=target < num_into)
    result = tl.where(live, result, 0.0)
    if REST > 0:
        result_rest = tl.where(live, result_rest, 0.0)
    if others_ptr is not None:
        # Added once, in the first split.
        added = inside & (split == 0)
        others_row = others_ptr + target[:, None] * others_row_stride
        place = others_row + main.to(tl.int64)[None, :] * others_column_stride
        result += tl.load(place, mask=added & (main < WIDTH)[None, :], other=0.0).to(tl.float32)
        if REST > 0:
            place = others_row + rest.to(tl.int64)[None, :] * others_column_stride
            result_rest += tl.load(place, mask=added & (rest < WIDTH)[None, :], other=0.0).to(tl.float32)
    result_row = result_ptr + (split * num_into + target)[:, None] * WIDTH
    tl.store(result_row + main[None, :], result, mask=inside & (main < WIDTH)[None, :])
    if REST > 0:
        tl.store(result_row + rest[None, :], result_rest, mask=inside & (rest < WIDTH)[None, :])
