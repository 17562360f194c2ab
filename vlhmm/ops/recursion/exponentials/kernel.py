"""The factors of a dense HMM as the kernels of its recursion read them. `ops.recursion.dense` calls these.

Every factor is shifted so that its largest entry is 2^32. That widens the range before underflow by 2^32, and the product of
a raw (not normalised) message and a tile, at most 2^96, is still far from overflow.

Emissions are read from a table with a row for each word, or for each position, as logs. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

LIFT = tl.constexpr(2.0**32)
LOG_LIFT = tl.constexpr(22.18070977791825)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)
NO_MESSAGE = tl.constexpr(2.0**127)


@triton.jit
@no_type_check
def finite_or_zero(peak):
    """A shift that leaves -inf as it is, where nothing is possible."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
@no_type_check
def lifted_exp(log_value):
    """LIFT exp(log_value): multiplying by a power of two is exact. For small values LIFT is added in log space, before exp underflows."""
    return tl.where(log_value > -60.0, tl.exp(log_value) * LIFT, tl.exp(log_value + LOG_LIFT))


@triton.jit
@no_type_check
def lifted_factor(log_value):
    """The same for a state's own factor, where 0 means that the state is impossible: on underflow it is the smallest normal number instead.

    That is larger than the true value, but small enough for the underflow check to report the state.
    """
    value = lifted_exp(log_value)
    value = tl.where(value < SMALLEST_NORMAL, SMALLEST_NORMAL, value)
    return tl.where(log_value == float("-inf"), 0.0, value)


@triton.jit
@no_type_check
def bounded(value):
    """Programs poll until they read no NaN, so a NaN value is passed between them as NO_MESSAGE, which no message can equal."""
    return tl.where(tl.abs(value) < NO_MESSAGE, value, NO_MESSAGE)


@triton.jit
@no_type_check
def extremes(log_tile, parts, count, BLOCK: tl.constexpr):
    """For each program's share: the smallest entry above -inf, the largest entry, and the smallest entry."""
    low = tl.full((BLOCK,), float("inf"), dtype=tl.float32)
    lowest = tl.full((BLOCK,), float("inf"), dtype=tl.float32)
    high = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    programs = tl.num_programs(0).to(tl.int64)
    for piece in range(tl.program_id(0).to(tl.int64), tl.cdiv(count, BLOCK), programs):
        at = piece * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(log_tile + at, mask=at < count, other=float("inf"))
        lowest = tl.minimum(lowest, value)
        low = tl.minimum(low, tl.where(value == float("-inf"), float("inf"), value))
        value = tl.where(at < count, value, float("-inf"))
        # The maximum ignores NaN: it counts as +inf, and becomes NaN again in `exp_tile`.
        high = tl.maximum(high, tl.where(value == value, value, float("inf")))
    tl.store(parts + tl.program_id(0), tl.min(low, axis=0))
    tl.store(parts + programs + tl.program_id(0), tl.max(high, axis=0))
    tl.store(parts + 2 * programs + tl.program_id(0), tl.min(lowest, axis=0))


@triton.jit
@no_type_check
def exp_tile(log_tile, parts, num_parts, extent, factor, result, count, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """The tile as products read it; `extent` is made of what `extremes` left, unless that is None."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if parts is None:
        peak = tl.load(extent + 1)
    else:
        part = tl.arange(0, 1024)
        low = tl.min(tl.load(parts + part, mask=part < num_parts, other=float("inf")), axis=0)
        peak = tl.max(tl.load(parts + num_parts + part, mask=part < num_parts, other=float("-inf")), axis=0)
        peak = tl.where(peak < float("inf"), peak, float("nan"))
        if tl.program_id(0) == 0:
            tl.store(extent, low)
            tl.store(extent + 1, peak)
            lowest = tl.load(parts + 2 * num_parts + part, mask=part < num_parts, other=float("inf"))
            tl.store(extent + 2, tl.min(lowest, axis=0))
    peak = finite_or_zero(peak)
    value = lifted_exp(tl.load(log_tile + at, mask=at < count, other=float("-inf")) - peak)
    if TIMES:
        value *= tl.load(factor + at, mask=at < count, other=0.0)
    tl.store(result + at, value.to(result.dtype.element_ty), mask=at < count)


@triton.jit
@no_type_check
def shifted_exp(log_row, row, states, BLOCK: tl.constexpr):
    """Write LIFT exp(log_row - its largest entry), not 0 where possible, and return that entry; 0 where all are -inf."""
    peak = float("-inf")
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, tl.max(tl.load(log_row + at, mask=at < states, other=float("-inf")), 0))
    peak = finite_or_zero(peak)
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(log_row + at, mask=at < states, other=float("-inf"))
        tl.store(row + at, lifted_factor(value - peak), mask=at < states)
    return peak


@triton.jit
@no_type_check
def scale_rows(
    log_inits,
    inits,
    init_peak,
    log_previous,
    message,
    operand,
    sums,
    least_before,
    num_inits,
    states,
    parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row: the initial rows, each shifted by its largest entry; then what the first step reads of each sequence."""
    row = tl.program_id(0).to(tl.int64)
    if row < num_inits:
        peak = shifted_exp(log_inits + row * states, inits + row * states, states, BLOCK)
        tl.store(init_peak + row, peak)
    else:
        row -= num_inits
        alive = 0.0
        least = float("inf")
        for first in range(0, states, BLOCK):
            at = first + tl.arange(0, BLOCK)
            log_value = tl.load(log_previous + row * states + at, mask=at < states, other=float("-inf"))
            value = tl.exp(log_value)
            possible = log_value > float("-inf")
            alive = tl.maximum(alive, tl.max(possible.to(tl.float32), 0))
            least = tl.minimum(least, tl.min(tl.where(possible, value, float("inf")), 0))
            tl.store(message + row * states + at, value, mask=at < states)
            tl.store(operand + row * states + at, bounded(value).to(operand.dtype.element_ty), mask=at < states)
        # The message before position 0 is not normalised again: its sum counts as 1, or as 0 if the past is impossible.
        part = tl.arange(0, PARTS)
        tl.store(sums + row * parts + part, tl.where(part == 0, alive, 0.0), mask=part < parts)
        tl.store(least_before + row, least)


@triton.jit
@no_type_check
def row_peaks(log_rows, peaks, states, BLOCK: tl.constexpr):
    """The largest entry of each row; 0 where all are -inf."""
    row = tl.program_id(0).to(tl.int64)
    peak = float("-inf")
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(log_rows + row * states + at, mask=at < states, other=float("-inf"))
        peak = tl.maximum(peak, tl.max(value, 0))
    tl.store(peaks + row, finite_or_zero(peak))


@triton.jit
@no_type_check
def emission_weight(log_rows, peaks, row_of, per_position, columns, states, within, in_tile):
    """LIFT exp(log emission - its largest entry): of row `row_of` of the table, 0 past the length, not 0 where possible."""
    row = tl.load(row_of + per_position, mask=within, other=0).to(tl.int64)
    log_weight = tl.load(
        log_rows + row[:, None] * states + columns[None, :], mask=in_tile & within[:, None], other=float("-inf")
    )
    return lifted_factor(log_weight - tl.load(peaks + row, mask=within, other=0.0)[:, None])
