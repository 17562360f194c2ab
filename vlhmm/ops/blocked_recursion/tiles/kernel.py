"""Every position's own part of the transition, made where the blocked recursion reads it; `blocked_recursion/launch.py` calls
these kernels, and `blocked_recursion/kernel.py` says what the letters mean.

    pack         features as operands
    make_tiles   a program a tile      S = exp(out in^T), each row shifted or normalised, and the log weight of each row
    accumulate   a program a stretch of positions  the gradient of the features: tile gradient times the other features

Where the transition is a table, `gather_tiles` and `add_tiles` stand for these.

K_PAD is K rounded up to a power of two, FILLED to a multiple of 16: up to there S has rows and columns, 0 from K on, and behind
them nothing is written or read; in vectors the padding is masked. Addresses are int64. `states` is the table of each group's
states, None where group g holds g K, ..., g K + K - 1.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.exponentials.kernel import finite_or_zero
from vlhmm.ops.rounding.kernel import nearest_tf32

# `do_not_specialize`: a kernel is not recompiled for another number of positions.


@triton.jit
@no_type_check
def states_of(states, group, number, inside, K):
    """The states of these numbers within a group."""
    state = group * K + number
    if states is not None:
        state = tl.load(states + state, mask=inside, other=0).to(tl.int64)
    return state


@triton.jit
@no_type_check
def pack(features, packed, barrier, num_rows, H, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, ROWS: tl.constexpr):
    """Features as operands: in the operands' type, zeros up to WIDTH; the barrier is -inf for rows with -inf in them.

    Such a state is never entered. Its features are set to 0, so that no product is 0 times -inf = NaN.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    here = (row < num_rows)[:, None]
    value = tl.load(features + row[:, None] * H + column[None, :], mask=here & (column < H)[None, :], other=0.0)
    value = value.to(tl.float32)
    tl.store(barrier + row, tl.where(tl.min(value, axis=1) == float("-inf"), float("-inf"), 0.0), mask=row < num_rows)
    value = tl.where(value == float("-inf"), 0.0, value)
    at = packed + row[:, None] * WIDTH + column[None, :]
    tl.store(at, value.to(packed.dtype.element_ty), mask=here & (column < WIDTH)[None, :])


@triton.jit
@no_type_check
def store_least(least, tile, possible):
    """The smallest possible entry of a program's part of a tile, 0 where it underflows."""
    smallest = tl.min(tl.min(tl.where(possible, tile, 1.0), axis=1), axis=0)
    tl.store(least + tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1), smallest)


@triton.jit
@no_type_check
def make_tiles(
    out,
    into,
    barrier,
    row_term,
    source_group,
    target_group,
    states,
    tiles,
    log_weight,
    least,
    K,
    M,
    WIDTH: tl.constexpr,
    BLOCK_FACTORED: tl.constexpr,
    FIND_ZEROS: tl.constexpr,
    PRODUCT: tl.constexpr,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Rows of one tile S, the log weight of each, and, to FIND_ZEROS, the smallest possible entry. A row stays whole: its normaliser
    needs all K columns.

    Without a `row_term` the log weights have been written before.
    """
    n = tl.program_id(0).to(tl.int64)
    source = tl.load(source_group + n).to(tl.int64)
    target = tl.load(target_group + n).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PAD)
    row_in, column_in = row < K, column < K
    feature = tl.arange(0, BLOCK_H)
    left_state, entered = states_of(states, source, row, row_in, K), states_of(states, target, column, column_in, K)
    left_at = out + left_state[:, None] * WIDTH + feature[None, :]
    right_at = into + entered[None, :] * WIDTH + feature[:, None]
    logits = tl.zeros((ROWS, K_PAD), dtype=tl.float32)
    for first in range(0, WIDTH, BLOCK_H):
        left = tl.load(left_at + first, mask=row_in[:, None], other=0.0)
        right = tl.load(right_at + first, mask=column_in[None, :], other=0.0)
        logits = tl.dot(left, right, logits, input_precision=PRODUCT)
    barred = tl.load(barrier + entered, mask=column_in, other=float("-inf"))[None, :]
    logits += barred
    peak = tl.max(logits, axis=1)
    tile = tl.exp(logits - finite_or_zero(peak)[:, None])
    if BLOCK_FACTORED:
        total = tl.sum(tile, axis=1)
        # One division a row.
        tile = tile * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        if row_term is not None:
            weight = tl.load(row_term + left_state * M + target, mask=row_in, other=float("-inf"))
            tl.store(log_weight + n * K + row, weight, mask=row_in)
    else:
        log_normalizer = tl.load(row_term + left_state, mask=row_in, other=0.0)
        weight = tl.where(peak == float("-inf"), float("-inf"), peak - log_normalizer)
        tl.store(log_weight + n * K + row, weight, mask=row_in)
    if FIND_ZEROS:
        store_least(least, tile, row_in[:, None] & (barred > float("-inf")))
    tile = tl.where(row_in[:, None], tile, 0.0).to(tiles.dtype.element_ty)
    at = tiles + n * K_PAD * K_PAD + row[:, None] * K_PAD + column[None, :]
    if FILLED == K_PAD:
        tl.store(at, tile)
    else:
        tl.store(at, tile, mask=(row < FILLED)[:, None] & (column < FILLED)[None, :])


@triton.jit
@no_type_check
def gather_tiles(
    log_prob,
    source_group,
    target_group,
    tiles,
    log_weight,
    least,
    K,
    num_columns,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows of one tile S, the log weight of each, and the smallest possible entry, from a table of log A."""
    n = tl.program_id(0).to(tl.int64)
    source = tl.load(source_group + n).to(tl.int64) * K
    target = tl.load(target_group + n).to(tl.int64) * K
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PAD)
    row_in = row < K
    inside = row_in[:, None] & (column < K)[None, :]
    from_table = log_prob + (source + row)[:, None] * num_columns + (target + column)[None, :]
    logits = tl.load(from_table, mask=inside, other=float("-inf"))
    peak = tl.max(logits, axis=1)
    tile = tl.exp(logits - finite_or_zero(peak)[:, None])
    store_least(least, tile, inside & (logits > float("-inf")))
    at = tiles + n * K_PAD * K_PAD + row[:, None] * K_PAD + column[None, :]
    tl.store(at, tile.to(tiles.dtype.element_ty), mask=(row < FILLED)[:, None] & (column < FILLED)[None, :])
    tl.store(log_weight + n * K + row, peak, mask=row_in)


@triton.jit
@no_type_check
def load_tile(tile, row, column, K_PAD: tl.constexpr, FILLED: tl.constexpr):
    """S at these rows and columns; 0 where nothing was written."""
    at = tile + row * K_PAD + column
    if FILLED == K_PAD:
        return tl.load(at)
    else:
        return tl.load(at, mask=(row < FILLED) & (column < FILLED), other=0.0)


@triton.jit
@no_type_check
def add_tiles(
    tiles,
    sent,
    ratio,
    source_group,
    target_group,
    gradient,
    K,
    num_columns,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """gradient[states left, states entered] += sent S ratio: rows of the tile of one position."""
    n = tl.program_id(0).to(tl.int64)
    source = tl.load(source_group + n).to(tl.int64) * K
    target = tl.load(target_group + n).to(tl.int64) * K
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PAD)
    row_in, column_in = row < K, column < K
    tile = load_tile(tiles + n * K_PAD * K_PAD, row[:, None], column[None, :], K_PAD, FILLED).to(tl.float32)
    leaving = tl.load(sent + n * K + row, mask=row_in, other=0.0)
    toward = tl.load(ratio + n * K + column, mask=column_in, other=0.0)
    value = leaving[:, None] * tile * toward[None, :]
    to = gradient + (source + row)[:, None] * num_columns + (target + column)[None, :]
    tl.atomic_add(to, value, mask=row_in[:, None] & column_in[None, :] & (value != 0.0), sem="relaxed")


@triton.jit
@no_type_check
def add_rows(total, gradient, states, group, row, feature, K, H):
    """gradient[states of the group, features] += total."""
    to = gradient + states_of(states, group, row, row < K, K)[:, None] * H + feature[None, :]
    tl.atomic_add(to, total, mask=(row < K)[:, None] & (feature < H)[None, :], sem="relaxed")


@triton.jit(do_not_specialize=["num_positions", "stretch"])
@no_type_check
def accumulate(
    tiles,
    sent,
    ratio,
    mean,
    order,
    own_group,
    other_group,
    states,
    features,
    block_weight,
    gradient,
    num_positions,
    stretch,
    K,
    H,
    WIDTH,
    BLOCK_FACTORED: tl.constexpr,
    BY_TARGET: tl.constexpr,
    PRECISION: tl.constexpr,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_H: tl.constexpr,
    TWO: tl.constexpr,
):
    """gradient[own states] += dlogits features[other states], over positions in the order of their own group.

    A program takes `stretch` positions and accumulates in registers while the group stays the same. Load is balanced however
    frequent a group is, and there is one atomic addition to memory for each stretch and group. With TWO a program takes two blocks
    of BLOCK_H features, and the tile gradient is computed once for both. With a `block_weight` the log weight of a position's tile
    is a product of features too: their gradient is flow times the weights of the target's block.
    """
    PIECES: tl.constexpr = (FILLED + INNER - 1) // INNER
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(2) * (BLOCK_H * (2 if TWO else 1)) + tl.arange(0, BLOCK_H)
    inner = tl.arange(0, INNER)
    row_in = row < K
    # Last positions first: the source groups of a boundary come last in the order. There every position has another group, so
    # these programs take longest and must start first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * stretch
    end = tl.minimum(first + stretch, num_positions)
    group = tl.load(own_group + first).to(tl.int64)
    total = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    if TWO:
        second = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    # One loop over positions and their chunks, so that software pipelining covers all loads.
    for i in range(first * PIECES, end * PIECES):
        p = i // PIECES
        n = tl.load(order + p).to(tl.int64)
        own = tl.load(own_group + p).to(tl.int64)
        other = tl.load(other_group + p).to(tl.int64)
        if own != group:
            add_rows(total, gradient, states, group, row, feature, K, H)
            total = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
            if TWO:
                add_rows(second, gradient, states, group, row, feature + BLOCK_H, K, H)
                second = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
            group = own
        column = (i % PIECES) * INNER + inner
        column_in = column < K
        # Rows are the states of the own group: target states if BY_TARGET, else source states.
        if BY_TARGET:
            tile = load_tile(tiles + n * K_PAD * K_PAD, column[None, :], row[:, None], K_PAD, FILLED)
            toward = tl.load(ratio + n * K + row, mask=row_in, other=0.0)[:, None]
            leaving = tl.load(sent + n * K + column, mask=column_in, other=0.0)[None, :]
            if BLOCK_FACTORED:
                toward = toward - tl.load(mean + n * K + column, mask=column_in, other=0.0)[None, :]
        else:
            tile = load_tile(tiles + n * K_PAD * K_PAD, row[:, None], column[None, :], K_PAD, FILLED)
            toward = tl.load(ratio + n * K + column, mask=column_in, other=0.0)[None, :]
            leaving = tl.load(sent + n * K + row, mask=row_in, other=0.0)[:, None]
            if BLOCK_FACTORED:
                toward = toward - tl.load(mean + n * K + row, mask=row_in, other=0.0)[:, None]
        d_logits = tile.to(tl.float32) * (leaving * toward)
        other_states = states_of(states, other, column, column_in, K)
        at = features + other_states[:, None] * WIDTH + feature[None, :]
        operand = tl.load(at, mask=column_in[:, None] & (feature < WIDTH)[None, :], other=0.0)
        d_logits = nearest_tf32(d_logits.to(operand.dtype), PRECISION)
        total = tl.dot(d_logits, nearest_tf32(operand, PRECISION), total, input_precision=PRECISION)
        if TWO:
            at += BLOCK_H
            operand = tl.load(at, mask=column_in[:, None] & (feature + BLOCK_H < WIDTH)[None, :], other=0.0)
            second = tl.dot(d_logits, nearest_tf32(operand, PRECISION), second, input_precision=PRECISION)
        # The outer condition is a compile-time constant.
        if block_weight is not None:  # noqa: SIM102
            if i % PIECES == 0:
                # A product with one nonzero column: the accumulator stays in the register layout of the tensor cores.
                flow = tl.load(sent + n * K + row, mask=row_in, other=0.0)
                flow *= tl.load(mean + n * K + row, mask=row_in, other=0.0)
                one = tl.arange(0, 16)
                flows = tl.where((one == 0)[None, :], flow[:, None], 0.0).to(features.dtype.element_ty)
                at_weight = block_weight + other * WIDTH + one[:, None] * 0 + feature[None, :]
                chosen = (one == 0)[:, None] & (feature < WIDTH)[None, :]
                weights = tl.load(at_weight, mask=chosen, other=0.0)
                flows = nearest_tf32(flows, PRECISION)
                total = tl.dot(flows, nearest_tf32(weights, PRECISION), total, input_precision=PRECISION)
                if TWO:
                    chosen = (one == 0)[:, None] & (feature + BLOCK_H < WIDTH)[None, :]
                    weights = tl.load(at_weight + BLOCK_H, mask=chosen, other=0.0)
                    second = tl.dot(flows, nearest_tf32(weights, PRECISION), second, input_precision=PRECISION)
    add_rows(total, gradient, states, group, row, feature, K, H)
    if TWO:
        add_rows(second, gradient, states, group, row, feature + BLOCK_H, K, H)
