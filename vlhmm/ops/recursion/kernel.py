"""The recursion on a GPU when every position takes the one tile: a dense HMM. The mathematics is that of `scaled`.

Up to a few thousand states one persistent kernel a direction walks over time. Each program owns a tile of the message
(sequences x states), and a barrier over the whole grid ends each position: 64 dependent steps cost 64 barriers instead of
64 launches. With more states the product of a step outweighs its launch, and is left to the library.

A row's sum must be known to normalise it, but only the next barrier makes it known. So a message is written raw,
beside its sum over each tile of states, and whoever reads it divides. The way back has no sum to wait for: with
B_t = Q_t / alpha_t, the sum of F_t is g_t+1 (it carries what the next token was asked), so

    B_t = A (B_t+1 e_t+1 / c_t+1) + g_t - g_t+1.

By rounding the sum is a little off; the difference is added to every entry one step later, so it never grows.

Axes as in `factors`; N is the number of tiles that the states are cut into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.scaled import Gradient

Precision = Literal["bf16", "tf32", "highest"]
"""Operands of the matrix products; messages and sums are always float32."""

Method = Literal["persistent", "launches", "library"]
"""One kernel for all positions; the same kernel launched for each; or the library's matrix product and a kernel for the rest."""

LARGEST_PERSISTENT = 2048
"""With more states a step is bound by reading the tile, and the library reads it with fewer bytes between the caches."""

SMALLEST_TOTAL = 1e-19
"""A message is multiplied before it is divided by its sum: beneath the root of float32's range that loses digits."""


@dataclass(frozen=True)
class Tiling:
    """A program makes `rows` x `columns` of a message, in steps of `inner` source states."""

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


# Smallest first: as many programs as there are multiprocessors hide the latency of a step best.
TILINGS = (
    Tiling(16, 32, 128, 4, 4),
    Tiling(32, 32, 128, 4, 4),
    Tiling(32, 64, 128, 4, 4),
    Tiling(64, 64, 128, 4, 4),
    Tiling(128, 64, 64, 8, 4),
    Tiling(128, 128, 64, 8, 4),
)

LIBRARY_TILING = Tiling(4, 1024, 16, 4, 1)
"""Where the library makes the product, a program has only whole rows to read and write."""


@dataclass(frozen=True)
class DenseRun:
    """What the forward pass leaves behind."""

    token_log_probs: Float[Tensor, "B T"]
    messages: Float[Tensor, "S B K"]
    """exp log_previous, then p(z_t | x_<=t) of every position, past the length that of the last one: S = T + 1. Where they
    were not kept S = 2, and the last message stands at T % 2."""
    scale: Float[Tensor, "B T"]
    """c_t of the scaled factors; 1 past the length."""
    suspect: Bool[Tensor, " B"]
    """A probability that matters may have been too small for its type."""
    tile: Float[Tensor, "K K"]
    """exp(log A - peak), as the matrix products read it."""
    extent: Float[Tensor, " 2"]
    """The smallest and the largest log A."""

    @property
    def last(self) -> Float[Tensor, "B K"]:
        return self.messages[self.scale.shape[1] % self.messages.shape[0]]


def forward(
    factors: Factors,
    precision: Precision,
    *,
    keep: bool,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> DenseRun:
    """The forward pass; `keep` the messages of all positions if a gradient or the filtered states will be asked for."""
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    method = method or _method(states)
    tiling = tiling or _tiling(size, states, device, precision, method)
    parts = triton.cdiv(states, tiling.columns)
    extent = torch.stack(torch.aminmax(factors.log_tiles))
    tile = torch.empty(states, states, device=device, dtype=_operand_type(precision, device))
    _exp_tile(factors.log_tiles, extent, tile)
    slots = length + 1 if keep else 2
    messages = torch.empty(slots, size, states, device=device)
    operand = torch.empty(2, size, states, device=device, dtype=tile.dtype)
    sums = torch.empty(length + 1, size, parts, device=device)
    lows = torch.empty(length, size, parts, device=device)
    rows = _scaled_rows(factors, (messages[0], operand[0], sums[0]))
    arguments = (
        *(operand, messages, tile, rows.emission, rows.inits, factors.init_of.contiguous(), factors.lengths),
        *(sums, lows),
    )
    sizes = (size, length, states, slots)
    if method == "library":
        for t in range(length + 1):
            product = _product(operand[t % 2], tile, precision) if t < length else messages
            _launch(_forward_kernel, (*arguments, product), sizes, range(t, t + 1), tiling, precision, method)
    else:
        _launch(_forward_kernel, (*arguments, messages), sizes, range(length + 1), tiling, precision, method)
    token_log_probs = torch.empty(size, length, device=device)
    scale = torch.empty_like(token_log_probs)
    suspect = torch.empty(size, dtype=torch.int8, device=device)
    _finish_kernel[(size,)](
        *(sums, lows, rows.emission_peak, rows.init_peak, extent, rows.vanished, factors.init_of.contiguous()),
        *(factors.lengths, token_log_probs, scale, suspect, size, length, parts),
        SMALLEST_TOTAL=SMALLEST_TOTAL,
        SMALLEST_MESSAGE=torch.finfo(torch.float32).tiny ** 0.75,
        POSITIONS=16,
        PARTS=triton.next_power_of_2(parts),
    )
    return DenseRun(token_log_probs, messages, scale, suspect.bool(), tile, extent)


def backward(
    factors: Factors,
    run: DenseRun,
    token_cotangent: Float[Tensor, "B T"],
    last_cotangent: Float[Tensor, "B K"],
    precision: Precision,
    *,
    tile_gradient: bool = True,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> Gradient:
    """The vector-Jacobian product; sequences that are suspect must have cotangents of 0, and get a gradient of 0.

    Without `tile_gradient` that of the tile is left empty: posteriors need no product of all positions.
    """
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    method = method or _method(states)
    tiling = tiling or _tiling(size, states, device, precision, method)
    rows = _scaled_rows(factors, None)
    ratio = torch.empty(length, size, states, device=device, dtype=run.tile.dtype)
    sums = torch.empty(length, size, triton.cdiv(states, tiling.columns), device=device)
    flow = torch.empty(size, states, device=device)
    # Dead and suspect sequences alike have no way back.
    scale = torch.where(run.suspect[:, None], 0.0, run.scale)
    arguments = (
        *(ratio, run.messages, run.tile, rows.emission, factors.init_of.contiguous(), factors.lengths, scale),
        *(token_cotangent.contiguous(), last_cotangent.contiguous(), last_cotangent.sum(1), sums, flow),
    )
    sizes = (size, length, states)
    if method == "library":
        for step in range(length + 1):
            product = _product(ratio[length - step], run.tile.T, precision) if step else flow
            _launch(_backward_kernel, (*arguments, product), sizes, range(step, step + 1), tiling, precision, method)
    else:
        _launch(_backward_kernel, (*arguments, flow), sizes, range(length + 1), tiling, precision, method)
    # Each program has put the posterior where it had read the emission.
    posterior = rows.emission
    from_tile = factors.log_tiles.new_empty(0, states, states)
    if tile_gradient:
        before = run.messages[:-1].view(-1, states)
        from_tile = _product(before.T, ratio.view(-1, states), precision)[None]
        _times_tile(from_tile, factors.log_tiles, run.extent)
    return Gradient(flow, _init_gradient(factors, posterior), from_tile, posterior)


def _operand_type(precision: Precision, device: torch.device) -> torch.dtype:
    # The interpreter takes bfloat16 for integers in a matrix product.
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


def _method(states: int) -> Method:
    return "persistent" if states <= LARGEST_PERSISTENT else "library"


def _tiling(size: int, states: int, device: torch.device, precision: Precision, method: Method) -> Tiling:
    """The smallest that needs no second round of programs, else the largest."""
    if method == "library":
        return LIBRARY_TILING
    programs = _multiprocessors(device)
    fitting = (one for one in TILINGS if triton.cdiv(size, one.rows) * triton.cdiv(states, one.columns) <= programs)
    tiling = next(fitting, TILINGS[-1])
    if precision == "bf16":
        return tiling
    # Operands twice as wide: half as many source states at a time fit into shared memory.
    return Tiling(tiling.rows, tiling.columns, tiling.inner // 2, tiling.num_warps, tiling.num_stages)


def _multiprocessors(device: torch.device) -> int:
    # The interpreter runs programs one after the other: a second one would never reach the first one's barrier.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _launch(
    kernel: Any,
    arguments: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    steps: range,
    tiling: Tiling,
    precision: Precision,
    method: Method,
) -> None:
    """All steps in one launch, or each in its own."""
    size, _, states = sizes[:3]
    device = arguments[0].device
    parts = triton.cdiv(states, tiling.columns)
    programs = triton.cdiv(size, tiling.rows) * parts
    options: dict[str, Any] = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    arrived = arguments[-1]
    if method == "persistent":
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        # Programs that wait for one another must all run at once.
        programs = min(programs, _multiprocessors(device))
        if device.type == "cuda":
            options["launch_cooperative_grid"] = True
    for first in [steps.start] if method == "persistent" else steps:
        kernel[(programs,)](
            *arguments,
            arrived,
            *sizes,
            first,
            steps.stop if method == "persistent" else first + 1,
            PARTS=triton.next_power_of_2(parts),
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            INNER=tiling.inner,
            INPUT_PRECISION="ieee" if precision == "highest" else "tf32",
            PERSISTENT=method == "persistent",
            FUSED=method != "library",
            **options,
        )


def _product(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"], precision: Precision) -> Float[Tensor, "K J"]:
    """left @ right in float32."""
    if precision == "bf16" and left.is_cuda:
        return torch.mm(left.to(torch.bfloat16), right, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "highest"
    try:
        return left @ right.float()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _init_gradient(factors: Factors, posterior: Float[Tensor, "B T K"]) -> Float[Tensor, "I K"]:
    """Each initial row's posteriors summed, as a product with a few indicator rows: no sorting, nothing asked of the host."""
    num_inits = factors.log_inits.shape[0]
    if num_inits == 0:
        return torch.zeros_like(factors.log_inits)
    wanted = torch.arange(num_inits, device=posterior.device)[:, None]
    indicator = (factors.init_of.flatten() == wanted).to(posterior.dtype)
    return _product(indicator, posterior.flatten(0, 1), "highest")


@dataclass(frozen=True)
class _Rows:
    """Emissions and initial rows as probabilities, each shifted in log space so that its largest entry is 1."""

    emission: Float[Tensor, "B T K"]
    emission_peak: Float[Tensor, "B T"]
    inits: Float[Tensor, "I K"]
    init_peak: Float[Tensor, " I"]
    vanished: Int[Tensor, " B"]
    """A state before position 0 is possible, but too unlikely for its type."""


def _scaled_rows(factors: Factors, begin: tuple[Tensor, Tensor, Tensor] | None) -> _Rows:
    """The scaled rows; with `begin`, also what the first step reads: the message, its operand, its sums."""
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    rows = _Rows(
        torch.empty(size, length, states, device=device),
        torch.empty(size, length, device=device),
        torch.empty(factors.log_inits.shape, device=device),
        torch.empty(factors.log_inits.shape[0], device=device),
        torch.empty(size, dtype=torch.int8, device=device),
    )
    message, operand, sums = begin or (rows.emission, rows.emission, rows.emission_peak)
    num_emissions, num_inits = size * length, rows.inits.shape[0]
    parts = sums.shape[1] if begin else 0
    block = min(4096, triton.next_power_of_2(states))
    _rows_kernel[(num_emissions + num_inits + (size if begin else 0),)](
        *(factors.log_emission.contiguous(), rows.emission, rows.emission_peak),
        *(factors.log_inits.contiguous(), rows.inits, rows.init_peak),
        *(factors.log_previous.contiguous(), message, operand, sums, rows.vanished),
        *(num_emissions, num_inits, states, parts),
        SMALLEST_MESSAGE=torch.finfo(torch.float32).tiny ** 0.75,
        PARTS=triton.next_power_of_2(max(1, parts)),
        BLOCK=block,
        num_warps=4 if block >= 1024 else 1,
    )
    return rows


def _exp_tile(log_tiles: Float[Tensor, "1 K K"], extent: Float[Tensor, " 2"], tile: Float[Tensor, "K K"]) -> None:
    count = tile.numel()
    _tile_kernel[(triton.cdiv(count, 4096),)](
        log_tiles.contiguous(), extent, tile, tile, count, TIMES=False, BLOCK=4096
    )


def _times_tile(
    gradient: Float[Tensor, "1 K K"], log_tiles: Float[Tensor, "1 K K"], extent: Float[Tensor, " 2"]
) -> None:
    """gradient times exp(log A - peak), in place."""
    count = gradient.numel()
    _tile_kernel[(triton.cdiv(count, 4096),)](
        log_tiles.contiguous(), extent, gradient, gradient, count, TIMES=True, BLOCK=4096
    )


@triton.jit
def _finite_or_zero(peak):  # type: ignore[no-untyped-def]
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _tile_kernel(log_tile, extent, factor, result, count, TIMES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    peak = _finite_or_zero(tl.load(extent + 1))
    value = tl.exp(tl.load(log_tile + at, mask=at < count, other=float("-inf")) - peak)
    if TIMES:
        value *= tl.load(factor + at, mask=at < count, other=0.0)
    tl.store(result + at, value.to(result.dtype.element_ty), mask=at < count)


@triton.jit
def _shifted_exp(log_row, row, states, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write exp(log_row - its largest entry), and return that entry; 0 where all are -inf."""
    peak = float("-inf")
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, tl.max(tl.load(log_row + at, mask=at < states, other=float("-inf")), 0))
    peak = _finite_or_zero(peak)
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(log_row + at, mask=at < states, other=float("-inf"))
        tl.store(row + at, tl.exp(value - peak), mask=at < states)
    return peak


@triton.jit
def _rows_kernel(  # type: ignore[no-untyped-def]
    log_emission,
    emission,
    emission_peak,
    log_inits,
    inits,
    init_peak,
    log_previous,
    message,
    operand,
    sums,
    vanished,
    num_emissions,
    num_inits,
    states,
    parts,
    SMALLEST_MESSAGE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if row < num_emissions:
        peak = _shifted_exp(log_emission + row * states, emission + row * states, states, BLOCK)
        tl.store(emission_peak + row, peak)
    elif row < num_emissions + num_inits:
        row -= num_emissions
        peak = _shifted_exp(log_inits + row * states, inits + row * states, states, BLOCK)
        tl.store(init_peak + row, peak)
    else:
        row -= num_emissions + num_inits
        alive = 0.0
        lost = 0
        for first in range(0, states, BLOCK):
            at = first + tl.arange(0, BLOCK)
            log_value = tl.load(log_previous + row * states + at, mask=at < states, other=float("-inf"))
            value = tl.exp(log_value)
            possible = log_value > float("-inf")
            alive = tl.maximum(alive, tl.max(possible.to(tl.float32), 0))
            lost = tl.maximum(lost, tl.max((possible & (value < SMALLEST_MESSAGE)).to(tl.int32), 0))
            tl.store(message + row * states + at, value, mask=at < states)
            tl.store(operand + row * states + at, value.to(operand.dtype.element_ty), mask=at < states)
        # The message before position 0 is taken as it is: its sum counts as 1, or as 0 where the past is impossible.
        part = tl.arange(0, PARTS)
        tl.store(sums + row * parts + part, tl.where(part == 0, alive, 0.0), mask=part < parts)
        tl.store(vanished + row, lost.to(tl.int8))


@triton.jit
def _grid_barrier(arrived, target):  # type: ignore[no-untyped-def]
    """Wait until `arrived` has been counted up to `target`: what any program wrote before, all read after."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")
    while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def _matrix_product(  # type: ignore[no-untyped-def]
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
        result = tl.dot(some_left, some_right, result, input_precision=INPUT_PRECISION)
        left_at += INNER
        right_at += INNER * row_stride
    return result


@triton.jit(do_not_specialize=["first_step", "end_step"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    operand,
    messages,
    tile,
    emission,
    inits,
    init_of,
    lengths,
    sums,
    lows,
    product,
    arrived,
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
            divisor = tl.where((t <= length) & (total > 0), total, 1.0)
            inverse = 1.0 / divisor
            before = tl.load(messages + (t % slots) * slot_size + at, mask=in_tile, other=0.0) * inverse[:, None]
            tl.store(messages + (t % slots) * slot_size + at, before, mask=in_tile)
            if t < num_positions:
                within = t < length
                following = messages + ((t + 1) % slots) * slot_size + at
                tl.store(following, before, mask=in_tile & (~within)[:, None])
                init = tl.load(init_of + rows.to(tl.int64) * num_positions + t, mask=in_batch, other=0)
                begins = init >= 0
                moves = within & (init < 0)
                if FUSED:
                    predicted = _matrix_product(
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
                # What has once become impossible stays so, also when the states begin anew.
                begun = tl.load(
                    inits + init[:, None].to(tl.int64) * states + columns[None, :],
                    mask=in_tile & (begins & (total > 0))[:, None],
                    other=0.0,
                )
                predicted = tl.where(begins[:, None], begun, predicted * inverse[:, None])
                emission_at = (rows[:, None].to(tl.int64) * num_positions + t) * states + columns[None, :]
                joint = predicted * tl.load(emission + emission_at, mask=in_tile, other=0.0)
                tl.store(following, joint, mask=in_tile & within[:, None])
                raw = operand + ((t + 1) % 2) * slot_size + at
                tl.store(raw, joint.to(operand.dtype.element_ty), mask=in_tile)
                sums_at = ((t + 1) * tl.cast(size, tl.int64) + rows) * parts + part
                tl.store(sums + sums_at, tl.sum(joint, 1), mask=in_batch)
                low = tl.min(tl.where(joint > 0, joint, float("inf")), 1)
                tl.store(lows + (t * tl.cast(size, tl.int64) + rows) * parts + part, low, mask=in_batch)
        if PERSISTENT:
            _grid_barrier(arrived, (t + 1) * tl.num_programs(0))


@triton.jit
def _finish_kernel(  # type: ignore[no-untyped-def]
    sums,
    lows,
    emission_peak,
    init_peak,
    extent,
    vanished,
    init_of,
    lengths,
    token_log_probs,
    scale,
    suspect,
    size,
    num_positions,
    parts,
    SMALLEST_TOTAL: tl.constexpr,
    SMALLEST_MESSAGE: tl.constexpr,
    POSITIONS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """For one sequence: log p of its tokens from the sums, and whether numbers came near the smallest of their type."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    smallest_log = tl.load(extent)
    tile_peak = _finite_or_zero(tl.load(extent + 1))
    # Without zeros in the tile every state reaches every state, and each step brings back more than was lost.
    has_zeros = (smallest_log - tile_peak < -87.0).to(tl.int32)
    doubt = tl.load(vanished + row).to(tl.int32) * has_zeros
    part = tl.arange(0, PARTS)
    for first in range(0, num_positions, POSITIONS):
        t = first + tl.arange(0, POSITIONS)
        in_text = t < num_positions
        within = t < length
        mask = within[:, None] & (part < parts)[None, :]
        step = (t[:, None].to(tl.int64) * size + row) * parts + part[None, :]
        total = tl.sum(tl.load(sums + tl.cast(size, tl.int64) * parts + step, mask=mask, other=0.0), 1)
        low = tl.min(tl.load(lows + step, mask=mask, other=float("inf")), 1)
        init = tl.load(init_of + row * num_positions + t, mask=within, other=-1)
        begin_peak = tl.load(init_peak + init, mask=within & (init >= 0), other=0.0)
        shift = tl.where(init >= 0, begin_peak, tile_peak)
        shift += tl.load(emission_peak + row * num_positions + t, mask=within, other=0.0)
        token = tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)) + shift, float("-inf"))
        tl.store(token_log_probs + row * num_positions + t, tl.where(within, token, 0.0), mask=in_text)
        tl.store(scale + row * num_positions + t, tl.where(within, total, 1.0), mask=in_text)
        fading = low < SMALLEST_MESSAGE * total * has_zeros
        doubt = tl.maximum(doubt, tl.max((within & ((total < SMALLEST_TOTAL) | fading)).to(tl.int32), 0))
    tl.store(suspect + row, doubt.to(tl.int8))


@triton.jit(do_not_specialize=["first_step", "end_step"])
def _backward_kernel(  # type: ignore[no-untyped-def]
    ratio,
    messages,
    tile,
    emission,
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
):
    """Step s makes r and Q of position t = T - 1 - s from r of position t + 1; the last one the flow into log_previous.

    `emission` is replaced by the posterior, each entry by the program that has read it.
    """
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
            if FUSED:
                backed = _matrix_product(
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
            # What rounding took from the sum of F at t + 1, which ought to be what the token at t + 2 was asked.
            known = next_moves & (t + 2 < length)
            known = known & (tl.load(init_of + per_position + 2, mask=known, other=0) < 0)
            every_part = tl.arange(0, PARTS)
            flow_sums = tl.load(
                sums + ((t + 1) * tl.cast(size, tl.int64) + rows[:, None]) * parts + every_part[None, :],
                mask=known[:, None] & (every_part < parts)[None, :],
                other=0.0,
            )
            missing = tl.load(token_cotangent + per_position + 2, mask=known, other=0.0) - tl.sum(flow_sums, 1)
            backed = tl.where(next_moves[:, None], backed + missing[:, None], 0.0)
            message = tl.load(messages + (t + 1) * slot_size + at, mask=in_tile, other=0.0)
            if t >= 0:
                within = t < length
                ends = (t == length - 1) & in_batch
                reached = message > 0
                asked_of_last = tl.load(last_cotangent + at, mask=in_tile & ends[:, None] & reached, other=0.0)
                backed = tl.where(ends[:, None], asked_of_last / tl.where(reached, message, 1.0), backed)
                flow_sum = tl.load(token_cotangent + per_position + 1, mask=next_moves, other=0.0)
                flow_sum += tl.load(last_cotangent_sum + rows, mask=ends, other=0.0)
                asked = tl.load(token_cotangent + per_position, mask=within, other=0.0)
                value = backed + (asked - flow_sum)[:, None]
                total = tl.load(scale + per_position, mask=within, other=0.0)
                emission_at = per_position[:, None] * states + columns[None, :]
                weight = tl.load(emission + emission_at, mask=in_tile, other=0.0)
                tl.store(emission + emission_at, tl.where(within[:, None], message * value, 0.0), mask=in_tile)
                moves = within & (total > 0)
                moves = moves & (tl.load(init_of + per_position, mask=within, other=0) < 0)
                carries = moves[:, None] & reached & (weight > 0)
                r = tl.where(carries, value * (weight / tl.where(moves, total, 1.0)[:, None]), 0.0)
                tl.store(ratio + t * slot_size + at, r.to(ratio.dtype.element_ty), mask=in_tile)
                sums_at = (t * tl.cast(size, tl.int64) + rows) * parts + part
                tl.store(sums + sums_at, tl.sum(message * backed, 1), mask=in_batch)
            else:
                tl.store(flow + at, message * backed, mask=in_tile)
        if PERSISTENT:
            _grid_barrier(arrived, (step + 1) * tl.num_programs(0))
