"""row_logsumexp on a GPU: logits live in one tile at a time, as in flash attention.

The forward pass takes log_sum_z = log sum_y exp(out_z . in_y) with a running peak and sum. When `out` needs a
gradient it also takes mean_z = sum_y p(y | z) in_y from the tile it already holds: the gradient of `out` is then
grad_z mean_z, and only the gradient of `into` has to make the logits again. Together 8 Z Y H operations instead of the
10 of making them once for each output, and no atomics: each program owns the rows it writes.

Operands are packed first: rows padded to whole tiles and columns to a width that the matrix units take, with zeros;
a row of `into` with -inf in it is dead (p(y | z) = 0), and its features are zeros too, so that no 0 times -inf is ever
taken. Then the loops need no masks.

Where it is said which rows of `into` are alive, these are packed first, and the loops end behind them: their number stays on
the device, so shapes are the same for every draw, but dead rows cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.precision import Precision

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: a program keeps `rows` of one operand and streams tiles of `columns` of the other."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Packed:
    """An operand as the kernels read it; `barrier` is 0, but -inf for rows that are padding or dead."""

    features: Float[Tensor, "padded_rows padded_width"]
    barrier: Float[Tensor, " padded_rows"]
    num_rows: int
    width: int
    place: Int[Tensor, " num_rows"] | None = None
    """Where each row stands, those alive before the others; None: in their order."""
    num_live: Int[Tensor, " 1"] | None = None


def padded_widths(width: int) -> tuple[int, int]:
    """`width` as a power of two and a padded rest: 256 -> (256, 0), 257 -> (256, 16), 100 -> (64, 64)."""
    main = max(16, 1 << (width.bit_length() - 1))
    rest = max(0, width - main)
    return main, max(16, triton.next_power_of_2(rest)) if rest else 0


def tiling(width: int, precision: Precision) -> Tiling:
    """Fixed by size: the kept rows, the streamed tiles in flight and the accumulator must fit one multiprocessor."""
    padded = sum(padded_widths(width))
    if precision == "bf16":
        if padded <= 128:
            return Tiling(rows=128, columns=128, num_warps=8, num_stages=3)
        if padded <= 272:
            # Measured on one H200 at width 256: 622 and 665 TFLOP/s; 128 columns and two stages gave 572 and 583.
            return Tiling(rows=128, columns=64, num_warps=8, num_stages=3)
        return Tiling(rows=64, columns=64, num_warps=8, num_stages=2)
    # Without matrix units the operands pass through registers: a larger tile spills.
    return Tiling(rows=32, columns=32, num_warps=8, num_stages=2)


def pack(operand: Float[Tensor, "N H"], precision: Precision, live: Bool[Tensor, " N"] | None = None) -> Packed:
    """The operand in the precision of the products, padded with zeros; rows that hold -inf are dead, and those not `live`."""
    num_rows, width = operand.shape
    place = num_live = None
    if live is not None:
        live_so_far = live.cumsum(0)
        num_live = live_so_far[-1:]
        every = torch.arange(num_rows, device=live.device)
        place = torch.where(live, live_so_far - 1, num_live + every - live_so_far)
    # Every tile height divides 128.
    padded_rows = triton.cdiv(num_rows, 128) * 128
    padded_width = sum(padded_widths(width))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    features = operand.new_empty(padded_rows, padded_width, dtype=dtype)
    barrier = operand.new_empty(padded_rows, dtype=torch.float32)
    block_rows = 16
    _pack_kernel[(padded_rows // block_rows,)](
        operand,
        features,
        barrier,
        place,
        num_live,
        num_rows,
        operand.stride(0),
        operand.stride(1),
        WIDTH=width,
        PADDED_WIDTH=padded_width,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=triton.next_power_of_2(padded_width),
        num_warps=4,
    )
    return Packed(features, barrier, num_rows, width, place, num_live)


def forward(
    out: Packed, into: Packed, *, with_mean: bool, precision: Precision, tiles: Tiling, num_splits: int | None = None
) -> tuple[Float[Tensor, " Z"], Float[Tensor, "Z H"] | None]:
    """log sum_y exp(out_z . in_y), and with it sum_y p(y | z) in_y when asked for."""
    num_row_tiles = triton.cdiv(out.num_rows, tiles.rows)
    num_column_tiles = triton.cdiv(into.num_rows, tiles.columns)
    # Few rows over many columns, as the states of a dense HMM over its words: what a part writes is little.
    flat = min(1.0, out.num_rows / into.num_rows)
    splits = _num_splits(num_row_tiles, num_column_tiles, out.features.device, num_splits, flat)
    log_sum = out.features.new_empty(splits, out.num_rows, dtype=torch.float32)
    mean_shape = (splits, out.num_rows, out.width) if with_mean else (0,)
    mean = out.features.new_empty(mean_shape, dtype=torch.float32)
    main, rest = padded_widths(out.width)
    _forward_kernel[(num_row_tiles, splits)](
        out.features,
        into.features,
        into.barrier,
        into.num_live,
        log_sum,
        mean,
        out.num_rows,
        into.num_rows,
        WIDTH=out.width,
        MAIN=main,
        REST=rest,
        BLOCK_ROWS=tiles.rows,
        BLOCK_COLUMNS=tiles.columns,
        WITH_MEAN=with_mean,
        INPUT_PRECISION="ieee" if precision == "highest" else "tf32",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if splits == 1:
        return log_sum[0], mean[0] if with_mean else None
    if not with_mean:
        return log_sum.logsumexp(dim=0), None
    whole, whole_mean = torch.empty_like(log_sum[0]), torch.empty_like(mean[0])
    _join_kernel[(out.num_rows,)](
        *(log_sum, mean, whole, whole_mean, splits, out.num_rows),
        WIDTH=out.width,
        SPLITS=min(16, triton.next_power_of_2(splits)),
        BLOCK_WIDTH=triton.next_power_of_2(out.width),
        num_warps=4,
    )
    return whole, whole_mean


def grad_out(
    mean: Float[Tensor, "Z H"], grad: Float[Tensor, " Z"], others: Float[Tensor, "Z H"] | None, dtype: torch.dtype
) -> Float[Tensor, "Z H"]:
    """grad_z mean_z, and to it the gradient that `others` gave."""
    num_rows, width = mean.shape
    result = mean.new_empty(num_rows, width, dtype=dtype)
    block_rows = 8
    _grad_out_kernel[(triton.cdiv(num_rows, block_rows),)](
        *(mean, grad.contiguous(), others, result, num_rows, *_strides(others)),
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        num_warps=4,
    )
    return result


def grad_into(
    out: Packed,
    into: Packed,
    log_sum: Float[Tensor, " Z"],
    grad: Float[Tensor, " Z"],
    others: Float[Tensor, "Y H"] | None = None,
    *,
    precision: Precision,
    tiles: Tiling,
    num_splits: int | None = None,
) -> Float[Tensor, "Y H"]:
    """sum_z grad_z p(y | z) out_z, and to it the gradient that `others` gave."""
    num_row_tiles = triton.cdiv(into.num_rows, tiles.rows)
    num_column_tiles = triton.cdiv(out.num_rows, tiles.columns)
    # Programs whose rows are all dead have nothing to do: as many more share the work of the others, if half of them are.
    busy_row_tiles = num_row_tiles if into.num_live is None else triton.cdiv(num_row_tiles, 2)
    splits = _num_splits(busy_row_tiles, num_column_tiles, into.features.device, num_splits)
    padded_rows = out.features.shape[0]
    shift, padded_grad = (log_sum.new_empty(padded_rows) for _ in range(2))
    _shift_kernel[(triton.cdiv(padded_rows, 256),)](
        *(log_sum.contiguous(), grad.contiguous(), shift, padded_grad, out.num_rows, padded_rows), BLOCK_ROWS=256
    )
    result = into.features.new_empty(splits, into.num_rows, into.width, dtype=torch.float32)
    main, rest = padded_widths(into.width)
    # Packed rows that stand elsewhere get it when they are back in their order.
    added = others if into.place is None else None
    _grad_into_kernel[(num_row_tiles, splits)](
        out.features,
        into.features,
        into.barrier,
        into.num_live,
        shift,
        padded_grad,
        added,
        result,
        out.num_rows,
        into.num_rows,
        *_strides(added),
        WIDTH=into.width,
        MAIN=main,
        REST=rest,
        BLOCK_ROWS=tiles.rows,
        BLOCK_COLUMNS=tiles.columns,
        INPUT_PRECISION="ieee" if precision == "highest" else "tf32",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    whole = result[0] if splits == 1 else result.sum(dim=0)
    if into.place is None:
        return whole
    in_order = whole.index_select(0, into.place)
    return in_order if others is None else in_order.add_(others)


def _strides(others: Float[Tensor, "N H"] | None) -> tuple[int, ...]:
    """Those of a gradient that may be a part of a wider one, or one row for all."""
    return (0, 0) if others is None else others.stride()


def _num_splits(
    num_row_tiles: int, num_column_tiles: int, device: torch.device, wanted: int | None, rows_by_columns: float = 1.0
) -> int:
    """Into how many parts the streamed operand is cut, so that few row tiles still fill the device."""
    if wanted is None:
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        # Parts of less than 4 tiles would spend their time on filling the pipeline.
        most = max(1, min(32, num_column_tiles // 4))
        # The time in units of a row tile's, a part being 1 / parts of it. With as many rows as columns a fiftieth to write and
        # read every part's own results: of an H200's 4 TB/s and 620 TFLOP/s.
        moved = 0.02 * rows_by_columns
        wanted = min(
            range(1, most + 1), key=lambda parts: triton.cdiv(num_row_tiles * parts, processors) / parts + moved * parts
        )
    # None is empty.
    tiles_per_split = -(-num_column_tiles // wanted)
    return -(-num_column_tiles // tiles_per_split)


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
def _pack_kernel(
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
def _forward_kernel(
    out_ptr,
    into_ptr,
    barrier_ptr,
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
        logits = logits * LOG2_E + barrier[None, :]
        new_peak = tl.maximum(peak, tl.max(logits, axis=1))
        # While every column was dead the peak is -inf, and -inf - -inf would be NaN.
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
def _join_kernel(
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
    # As in `_forward_kernel`.
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(whole_ptr + row, peak + tl.log2(total) * LN_2)
    tl.store(whole_mean_ptr + row * WIDTH + column, mean / total, mask=column < WIDTH)


@triton.jit
@no_type_check
def _grad_out_kernel(
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
def _shift_kernel(log_sum_ptr, grad_ptr, shift_ptr, padded_grad_ptr, num_rows, num_padded, BLOCK_ROWS: tl.constexpr):
    """What `_grad_into_kernel` reads of each row, in units of log 2 and padded.

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
def _grad_into_kernel(
    out_ptr,
    into_ptr,
    barrier_ptr,
    num_live_ptr,
    shift_ptr,
    grad_ptr,
    others_ptr,
    result_ptr,
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
    """Keeps a tile of `into`, streams `out`: result (splits, Y, H)."""
    PADDED: tl.constexpr = MAIN + REST
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    split = tl.program_id(1).to(tl.int64)
    first_tile, last_tile = tiles_of_split(num_out, BLOCK_COLUMNS)
    if num_live_ptr is not None:
        # Dead rows alone have nothing to stream.
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

    for tile in range(first_tile, last_tile):
        out = tl.load(out_tile + main[None, :])
        logits = tl.dot(into, out.T, input_precision=INPUT_PRECISION)
        if REST > 0:
            out_rest = tl.load(out_tile + rest[None, :])
            logits = tl.dot(into_rest, out_rest.T, logits, input_precision=INPUT_PRECISION)
        shift = tl.load(shift_ptr + tile * BLOCK_COLUMNS + column)
        grad = tl.load(grad_ptr + tile * BLOCK_COLUMNS + column)
        weight = tl.exp2(logits * LOG2_E - shift[None, :]) * grad[None, :]
        operand = weight.to(out.dtype)
        result = tl.dot(operand, out, result, input_precision=INPUT_PRECISION)
        if REST > 0:
            result_rest = tl.dot(operand, out_rest, result_rest, input_precision=INPUT_PRECISION)
        out_tile += BLOCK_COLUMNS * PADDED

    target = first_row + row
    # Dead rows hold what zeros would have got; it may even be infinite.
    live = (tl.load(barrier_ptr + target) == 0.0)[:, None]
    inside = (target < num_into)[:, None]
    result = tl.where(live, result, 0.0)
    if REST > 0:
        result_rest = tl.where(live, result_rest, 0.0)
    if others_ptr is not None:
        # Once: with the first part.
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
