"""The backward pass of the blocked recursion on a GPU: `launch.py` calls these kernels, and `blocked_recursion/kernel.py` defines
the symbols."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.blocked_recursion.kernel import SMALLEST_NORMAL, in_parts
from vlhmm.ops.blocked_recursion.tiles.kernel import states_of

# `do_not_specialize`: a kernel is not recompiled for another number of positions.

MAX_SLOPE = tl.constexpr(2.0**126)
MAX_RATIO = tl.constexpr(2.0**112)


@triton.jit
@no_type_check
def held(value, LIMIT: tl.constexpr):
    """0 where the value, or the sum of several, would overflow float32: a state with a near-zero filtered probability but a large
    posterior is left out. NaN is propagated, so that errors show."""
    return tl.where(tl.abs(value) > LIMIT, 0.0, value)


@triton.jit
@no_type_check
def slope_at_end(last_cotangent, here, b, state, inside, K):
    """dL / dlog alpha divided by alpha, for the last message: bounded, since the quotient of two small numbers may overflow."""
    slope = tl.zeros_like(here)
    if last_cotangent is not None:
        asked = tl.load(last_cotangent + b * K + state, mask=inside, other=0.0)
        slope = held(tl.where(here > 0.0, asked / tl.where(here > 0.0, here, 1.0), 0.0), MAX_SLOPE)
    return slope


@triton.jit(do_not_specialize=["T"])
@no_type_check
def backward(
    tiles,
    alpha,
    weight,
    emission,
    totals,
    init_of,
    lengths,
    token_cotangent,
    last_cotangent,
    mean,
    T,
    K,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The backward pass of one sequence: its means. `passed`, the sum of sent times mean at the position just processed, equals
    that position's cotangent, or 0 where its states restart from an initial row or it is impossible. One step in 16 computes the sum
    itself, so that rounding errors do not accumulate."""
    CHUNKS: tl.constexpr = (FILLED + COLUMNS - 1) // COLUMNS
    BETWEEN_SUMS: tl.constexpr = 16 * CHUNKS
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    inside = state < K
    column = tl.arange(0, COLUMNS)
    length = tl.load(lengths + b).to(tl.int64)
    last = tl.maximum(length, 1) - 1
    tile_at = tiles + b * T * K_PAD * K_PAD + state[:, None] * K_PAD + column[None, :]
    final = tl.load(alpha + (b * T + last) * K + state, mask=inside & (length > 0), other=0.0)
    slope = slope_at_end(last_cotangent, final, b, state, inside, K)
    passed = 0.0
    if PARTS:
        average = tl.zeros((K_PAD, PARTS), dtype=tl.float32)
    else:
        average = tl.zeros((K_PAD,), dtype=tl.float32)
    # One pipelined loop as in `forward`; chunks are columns of the tile, so all chunks add to one accumulator.
    for i in tl.range(0, length * CHUNKS, num_stages=STAGES):
        t = last - i // CHUNKS
        chunk = i % CHUNKS
        at = b * T + t
        at_tile = tile_at + (t * (K_PAD * K_PAD) + chunk * COLUMNS)
        if FILLED == K_PAD:
            tile = tl.load(at_tile)
        else:
            filled = (state < FILLED)[:, None] & (chunk * COLUMNS + column < FILLED)[None, :]
            tile = tl.load(at_tile, mask=filled, other=0.0)
        here = tl.load(alpha + at * K + state, mask=inside & (chunk == 0), other=0.0)
        e = tl.load(emission + at * K + state, mask=inside & (chunk == 0), other=0.0)
        w = tl.load(weight + at * K + state, mask=inside & (chunk == CHUNKS - 1), other=0.0)
        total = tl.load(totals + at)
        cotangent = tl.load(token_cotangent + at)
        init = tl.load(init_of + at)
        if i % BETWEEN_SUMS == 0:
            passed = tl.sum(here * slope, axis=0)
        # Impossible states have gradient 0, whatever their cotangent.
        rising = tl.where(here > 0.0, slope + (cotangent - passed), 0.0)
        # If the total is 0, no state is reached. After the first chunk of a step `slope` holds the ratio.
        ratio = held(rising * e * (1.0 / tl.maximum(total, SMALLEST_NORMAL)), MAX_RATIO)
        slope = tl.where(chunk == 0, ratio, slope)
        part = slope
        if CHUNKS > 1:
            part = tl.gather(part, (chunk * COLUMNS + column).to(tl.int32), 0)
        if PARTS:
            average = tl.dot(tile, in_parts(part, PARTS), average)
        else:
            average += tl.sum(tile.to(tl.float32) * part[None, :], axis=1)
        if chunk == CHUNKS - 1:
            found = average
            if PARTS:
                found = tl.sum(average, axis=1)
            tl.store(mean + at * K + state, found, mask=inside)
            slope = held(w * found, MAX_SLOPE)
            passed = tl.where((init < 0) & (total > 0.0), cotangent, 0.0)
            average = tl.zeros_like(average)


@triton.jit(do_not_specialize=["T"])
@no_type_check
def conclude(
    alpha,
    weight,
    emission,
    totals,
    init_of,
    source_group,
    target_group,
    states,
    log_previous,
    lengths,
    token_cotangent,
    last_cotangent,
    mean,
    sent,
    posterior,
    ratio,
    d_log_previous,
    d_log_inits,
    d_row_term,
    T,
    K,
    M,
    BLOCK_FACTORED: tl.constexpr,
    K_PAD: tl.constexpr,
):
    """What follows from the means of one position and the next: sent, ratio, posterior; gradients of row terms and inits.

    Past the length all are 0.
    """
    n = tl.program_id(0).to(tl.int64)
    b = n // T
    t = n % T
    state = tl.arange(0, K_PAD)
    inside = state < K
    length = tl.load(lengths + b).to(tl.int64)
    within = inside & (t < length)
    following = inside & (t + 1 < length)
    previous = tl.exp(tl.load(log_previous + b * K + state, mask=inside & (t == 0), other=float("-inf")))
    before = tl.load(alpha + (n - 1) * K + state, mask=within & (t > 0), other=0.0)
    before = tl.where(t > 0, before, previous)
    average = tl.load(mean + n * K + state, mask=within, other=0.0)
    leaving = before * tl.load(weight + n * K + state, mask=within, other=0.0)
    flow = leaving * average
    here = tl.load(alpha + n * K + state, mask=within, other=0.0)
    slope = tl.load(weight + (n + 1) * K + state, mask=following, other=0.0)
    slope = held(slope * tl.load(mean + (n + 1) * K + state, mask=following, other=0.0), MAX_SLOPE)
    if t + 1 == length:
        slope = slope_at_end(last_cotangent, here, b, state, inside, K)
    cotangent = tl.load(token_cotangent + n)
    rising = tl.where(here > 0.0, slope + (cotangent - tl.sum(here * slope, axis=0)), 0.0)
    total = tl.load(totals + n, mask=t < length, other=0.0)
    e = tl.load(emission + n * K + state, mask=within, other=0.0)
    tl.store(sent + n * K + state, leaving, mask=inside)
    rising_per_total = held(rising * e * (1.0 / tl.maximum(total, SMALLEST_NORMAL)), MAX_RATIO)
    tl.store(ratio + n * K + state, rising_per_total, mask=inside)
    tl.store(posterior + n * K + state, here * rising, mask=inside)
    tl.store(mean + n * K + state, average, mask=inside & (t >= length))
    if t == 0:
        if length == 0:
            flow = previous * slope_at_end(last_cotangent, previous, b, state, inside, K)
        tl.store(d_log_previous + b * K + state, flow, mask=inside)
    used = within & (flow != 0.0)
    if BLOCK_FACTORED:
        source = tl.load(source_group + n).to(tl.int64)
        target = tl.load(target_group + n).to(tl.int64)
        tl.atomic_add(d_row_term + (source * K + state) * M + target, flow, mask=used, sem="relaxed")
    elif d_row_term is not None:
        source = tl.load(source_group + n).to(tl.int64)
        of_row = states_of(states, source, state, inside, K)
        tl.atomic_add(d_row_term + of_row, -flow, mask=used, sem="relaxed")
    if d_log_inits is not None:
        init = tl.load(init_of + n).to(tl.int64)
        tl.atomic_add(d_log_inits + init * K + state, here * rising, mask=within & (init >= 0), sem="relaxed")
