"""How the kernels of `row_logsumexp` are called: what is allocated, how the work is tiled. Nothing here synchronises host and device,
so a CUDA graph can hold it all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.row_logsumexp import kernel
from vlhmm.ops.sizes import cdiv, multiprocessors, power_of_2
from vlhmm.precision import Precision


@dataclass(frozen=True)
class Tiling:
    """How the work is tiled: a program keeps `rows` of one operand and streams tiles of `columns` of the other."""

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
    return main, max(16, power_of_2(rest)) if rest else 0


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
    # Without tensor cores the operands pass through registers: a larger tile causes register spills.
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
    padded_rows = cdiv(num_rows, 128) * 128
    padded_width = sum(padded_widths(width))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    features = operand.new_empty(padded_rows, padded_width, dtype=dtype)
    barrier = operand.new_empty(padded_rows, dtype=torch.float32)
    block_rows = 16
    kernel.pack[(padded_rows // block_rows,)](
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
        BLOCK_WIDTH=power_of_2(padded_width),
        num_warps=4,
    )
    return Packed(features, barrier, num_rows, width, place, num_live)


def forward(
    out: Packed,
    into: Packed,
    *,
    with_mean: bool,
    precision: Precision,
    tiles: Tiling,
    num_splits: int | None = None,
    bias: Float[Tensor, " padded_rows"] | None = None,
) -> tuple[Float[Tensor, " Z"], Float[Tensor, "Z H"] | None]:
    """log sum_y exp(out_z . in_y + bias_y), and with it sum_y p(y | z) in_y when asked for."""
    num_row_tiles = cdiv(out.num_rows, tiles.rows)
    num_column_tiles = cdiv(into.num_rows, tiles.columns)
    # Few rows and many columns, as states and words of a dense HMM: the partial results of a split are small.
    flat = min(1.0, out.num_rows / into.num_rows)
    splits = _num_splits(num_row_tiles, num_column_tiles, out.features.device, num_splits, flat)
    log_sum = out.features.new_empty(splits, out.num_rows, dtype=torch.float32)
    mean_shape = (splits, out.num_rows, out.width) if with_mean else (0,)
    mean = out.features.new_empty(mean_shape, dtype=torch.float32)
    main, rest = padded_widths(out.width)
    kernel.forward[(num_row_tiles, splits)](
        out.features,
        into.features,
        into.barrier,
        bias,
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
    kernel.join[(out.num_rows,)](
        *(log_sum, mean, whole, whole_mean, splits, out.num_rows),
        WIDTH=out.width,
        SPLITS=min(16, power_of_2(splits)),
        BLOCK_WIDTH=power_of_2(out.width),
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
    kernel.grad_out[(cdiv(num_rows, block_rows),)](
        *(mean, grad.contiguous(), others, result, num_rows, *_strides(others)),
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=power_of_2(width),
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
    tiling = {"precision": precision, "tiles": tiles, "num_splits": num_splits}
    return grad_into_and_bias(out, into, None, log_sum, grad, others, **tiling)[0]  # type: ignore[arg-type]


def grad_into_and_bias(
    out: Packed,
    into: Packed,
    bias: Float[Tensor, " padded_rows"] | None,
    log_sum: Float[Tensor, " Z"],
    grad: Float[Tensor, " Z"],
    others: Float[Tensor, "Y H"] | None = None,
    *,
    precision: Precision,
    tiles: Tiling,
    num_splits: int | None = None,
) -> tuple[Float[Tensor, "Y H"], Float[Tensor, " Y"] | None]:
    """`grad_into`, and the gradient of a bias that was added to every row of logits."""
    num_row_tiles = cdiv(into.num_rows, tiles.rows)
    num_column_tiles = cdiv(out.num_rows, tiles.columns)
    # Programs whose rows are all dead exit at once. Assuming that half are dead, twice the splits keep the GPU occupied.
    busy_row_tiles = num_row_tiles if into.num_live is None else cdiv(num_row_tiles, 2)
    splits = _num_splits(busy_row_tiles, num_column_tiles, into.features.device, num_splits)
    padded_rows = out.features.shape[0]
    shift, padded_grad = (log_sum.new_empty(padded_rows) for _ in range(2))
    kernel.make_shift[(cdiv(padded_rows, 256),)](
        *(log_sum.contiguous(), grad.contiguous(), shift, padded_grad, out.num_rows, padded_rows), BLOCK_ROWS=256
    )
    result = into.features.new_empty(splits, into.num_rows, into.width, dtype=torch.float32)
    grad_bias = None if bias is None else result.new_empty(splits, into.num_rows)
    main, rest = padded_widths(into.width)
    # With permuted (packed) rows it is added after the rows are back in their order.
    added = others if into.place is None else None
    kernel.grad_into[(num_row_tiles, splits)](
        out.features,
        into.features,
        into.barrier,
        bias,
        into.num_live,
        shift,
        padded_grad,
        added,
        result,
        grad_bias,
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
    of_bias = None if grad_bias is None else grad_bias.sum(dim=0)
    if into.place is None:
        return whole, of_bias
    in_order = whole.index_select(0, into.place)
    return in_order if others is None else in_order.add_(others), of_bias


def _strides(others: Float[Tensor, "N H"] | None) -> tuple[int, ...]:
    """Those of a gradient that may be a part of a wider one, or one row for all."""
    return (0, 0) if others is None else others.stride()


def _num_splits(
    num_row_tiles: int, num_column_tiles: int, device: torch.device, wanted: int | None, rows_by_columns: float = 1.0
) -> int:
    """The number of splits of the streamed operand (split-K), so that few row tiles still occupy all multiprocessors."""
    if wanted is None:
        processors = multiprocessors(device)
        # Splits of fewer than 4 tiles would spend most of their time on filling the pipeline.
        most = max(1, min(32, num_column_tiles // 4))
        # Cost model, in units of the time of one row tile: waves of programs, each 1 / splits long, and memory traffic of partial
        # results. With as many rows as columns that is a fiftieth for each split, from an H200's 4 TB/s and 620 TFLOP/s.
        moved = 0.02 * rows_by_columns
        wanted = min(
            range(1, most + 1), key=lambda parts: cdiv(num_row_tiles * parts, processors) / parts + moved * parts
        )
    # Rounded so that no split is empty.
    tiles_per_split = cdiv(num_column_tiles, wanted)
    return cdiv(num_column_tiles, tiles_per_split)
