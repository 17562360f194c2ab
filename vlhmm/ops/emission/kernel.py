"""Emissions of a partition on a GPU, in six kernels; `launch.py` calls them.

Words are taken in the order of the layout, where those of a group are side by side, in tiles of up to TILE_WORDS words of
one group. For word x, state z of its group, cotangent g of log p:

    make_logits   a program a tile   logit = word_x . emit_z + bias_x, and their log sum over the words of the tile
    normalize     part of a tile     log p = logit - the log sum over the tiles of the group, in place
    sum_tile      a program a tile   the sum of g over the words of the tile
    make_d_logits part of a tile     dlogit = g - p sum of g over the group, and its sum over z: the gradient of bias_x
    make_d_words  a program a tile   sum over z of dlogit emit_z
    make_d_emit   a program a group  sum over x of dlogit word_x

One group (a dense HMM) has every tile: there `launch.py` sums over the tiles itself and cuts the last kernel's words.

Reductions over the words of a group are written as one partial result for each tile and state: several programs share a large
group, and there are no atomics. Results are in the order of word ids; only `d_logits` is in the order of the layout, since
only the last two kernels read it. Pieces of K and H are further axes of the grids. Addresses are int64.

`tiles` has five numbers a tile: group, first position in the layout, words, first tile of the group, end of its tiles.
`spans` has three a group: group, first position, words.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.rounding.kernel import nearest_tf32

# How many tiles of a group are loaded at once when their partial results are reduced.
TILES = tl.constexpr(16)


@triton.jit
@no_type_check
def operand(values, PRECISION: tl.constexpr, PRODUCT: tl.constexpr):
    """float32 or bf16 values as a matrix product reads them; one that splits its operands rounds them itself."""
    if PRECISION == "bf16":
        values = values.to(tl.bfloat16)
    return nearest_tf32(values, PRODUCT)


@triton.jit
@no_type_check
def make_logits(
    emit,
    words,
    bias,
    order,
    tiles,
    logits,
    tile_log_sum,
    K,
    H,
    WITH_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    group = tl.load(tiles + tile * 5).to(tl.int64)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    row = tl.arange(0, TILE_WORDS)
    state = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    feature = tl.arange(0, BLOCK_H)
    row_in, state_in = row < count, state < K
    word = tl.load(order + first + row, mask=row_in, other=0).to(tl.int64)
    words_at = words + word[:, None] * H + feature[None, :]
    emit_at = emit + (group * K + state)[:, None] * H + feature[None, :]
    total = tl.zeros((TILE_WORDS, BLOCK_K), dtype=tl.float32)
    for begin in range(0, H, BLOCK_H):
        feature_in = (begin + feature < H)[None, :]
        left = tl.load(words_at + begin, mask=row_in[:, None] & feature_in, other=0.0)
        right = tl.load(emit_at + begin, mask=state_in[:, None] & feature_in, other=0.0)
        left, right = operand(left, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRODUCT)
    if WITH_BIAS:
        total += tl.load(bias + word, mask=row_in, other=0.0)[:, None]
    tl.store(logits + word[:, None] * K + state[None, :], total, mask=row_in[:, None] & state_in[None, :])
    # A tile has a word, so the peak is finite.
    total = tl.where(row_in[:, None], total, float("-inf"))
    peak = tl.max(total, axis=0)
    log_sum = peak + tl.log(tl.sum(tl.exp(total - peak[None, :]), axis=0))
    tl.store(tile_log_sum + tile * K + state, log_sum, mask=state_in)


@triton.jit
@no_type_check
def normalize(logits, order, tiles, tile_log_sum, K, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    first_tile = tl.load(tiles + tile * 5 + 3)
    end_tile = tl.load(tiles + tile * 5 + 4)
    if tl.program_id(1) * ROWS >= count:
        return
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    state = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    row_in, state_in = row < count, state < K
    # Loaded before the loop, which hides the memory latency.
    word = tl.load(order + first + row, mask=row_in, other=0).to(tl.int64)
    inside = row_in[:, None] & state_in[None, :]
    logits_at = logits + word[:, None] * K + state[None, :]
    logit = tl.load(logits_at, mask=inside, other=0.0)
    peak = tl.full((BLOCK_K,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for begin in range(first_tile, end_tile, TILES):
        other = (begin + tl.arange(0, TILES)).to(tl.int64)
        at = tile_log_sum + other[:, None] * K + state[None, :]
        # The padding of K reads 0 from the first tile, so that its peak, which is unused, is finite too.
        beyond = tl.where((other == begin)[:, None] & (state >= K)[None, :], 0.0, float("-inf"))
        log_sum = tl.load(at, mask=(other < end_tile)[:, None] & state_in[None, :], other=beyond)
        new_peak = tl.maximum(peak, tl.max(log_sum, axis=0))
        total = total * tl.exp(peak - new_peak) + tl.sum(tl.exp(log_sum - new_peak[None, :]), axis=0)
        peak = new_peak
    tl.store(logits_at, logit - (peak + tl.log(total))[None, :], mask=inside)


@triton.jit
@no_type_check
def sum_tile(grad, order, tiles, tile_sum, K, TILE_WORDS: tl.constexpr, BLOCK_K: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    row = tl.arange(0, TILE_WORDS)
    state = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    row_in, state_in = row < count, state < K
    word = tl.load(order + first + row, mask=row_in, other=0).to(tl.int64)
    at = grad + word[:, None] * K + state[None, :]
    value = tl.load(at, mask=row_in[:, None] & state_in[None, :], other=0.0)
    tl.store(tile_sum + tile * K + state, tl.sum(value, axis=0), mask=state_in)


@triton.jit
@no_type_check
def make_d_logits(
    grad,
    log_prob,
    order,
    tiles,
    tile_sum,
    d_logits,
    d_bias,
    K,
    WITH_BIAS: tl.constexpr,
    SUMMED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`SUMMED`: there is one group, and `tile_sum` holds its sum alone."""
    tile = tl.program_id(0).to(tl.int64)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    first_tile = tl.load(tiles + tile * 5 + 3)
    end_tile = tl.load(tiles + tile * 5 + 4)
    if SUMMED:
        end_tile = first_tile + 1
    if tl.program_id(1) * ROWS >= count:
        return
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    position = first.to(tl.int64) + row
    row_in = row < count
    word = tl.load(order + position, mask=row_in, other=0).to(tl.int64)
    row_sum = tl.zeros((ROWS,), dtype=tl.float32)
    # One program covers all of K, so it alone writes the gradient of the word's bias.
    for begin_k in range(0, K, BLOCK_K):
        state = begin_k + tl.arange(0, BLOCK_K)
        state_in = state < K
        inside = row_in[:, None] & state_in[None, :]
        at = word[:, None] * K + state[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0)
        prob = tl.exp(tl.load(log_prob + at, mask=inside, other=float("-inf")))
        group_sum = tl.zeros((BLOCK_K,), dtype=tl.float32)
        for begin in range(first_tile, end_tile, TILES):
            other = (begin + tl.arange(0, TILES)).to(tl.int64)
            sums_in = (other < end_tile)[:, None] & state_in[None, :]
            sums = tl.load(tile_sum + other[:, None] * K + state[None, :], mask=sums_in, other=0.0)
            group_sum += tl.sum(sums, axis=0)
        value = g - prob * group_sum[None, :]
        row_sum += tl.sum(value, axis=1)
        to = d_logits + position[:, None] * K + state[None, :]
        tl.store(to, value.to(d_logits.dtype.element_ty), mask=inside)
    if WITH_BIAS:
        tl.store(d_bias + word, row_sum, mask=row_in)


@triton.jit
@no_type_check
def make_d_words(
    d_logits,
    emit,
    order,
    tiles,
    d_words,
    K,
    H,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    group = tl.load(tiles + tile * 5).to(tl.int64)
    first = tl.load(tiles + tile * 5 + 1)
    count = tl.load(tiles + tile * 5 + 2)
    row = tl.arange(0, TILE_WORDS)
    position = first.to(tl.int64) + row
    state = tl.arange(0, BLOCK_K)
    feature = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    row_in, feature_in = row < count, feature < H
    word = tl.load(order + position, mask=row_in, other=0).to(tl.int64)
    d_logits_at = d_logits + position[:, None] * K + state[None, :]
    total = tl.zeros((TILE_WORDS, BLOCK_H), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        state_in = begin + state < K
        left = tl.load(d_logits_at + begin, mask=row_in[:, None] & state_in[None, :], other=0.0)
        emit_at = emit + (group * K + begin + state)[:, None] * H + feature[None, :]
        right = tl.load(emit_at, mask=state_in[:, None] & feature_in[None, :], other=0.0)
        left, right = operand(left, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
        total = tl.dot(left, right, total, input_precision=PRODUCT)
    tl.store(d_words + word[:, None] * H + feature[None, :], total, mask=row_in[:, None] & feature_in[None, :])


@triton.jit
@no_type_check
def make_d_emit(
    d_logits,
    words,
    order,
    spans,
    d_emit,
    K,
    H,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    STEP_WORDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The largest groups come first in `spans` (load balancing). A group without words gets zeros."""
    span = tl.program_id(0).to(tl.int64)
    group = tl.load(spans + span * 3).to(tl.int64)
    first = tl.load(spans + span * 3 + 1).to(tl.int64)
    count = tl.load(spans + span * 3 + 2)
    state = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    feature = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = tl.arange(0, STEP_WORDS)
    state_in, feature_in = state < K, feature < H
    total = tl.zeros((BLOCK_K, BLOCK_H), dtype=tl.float32)
    for begin in range(0, count, STEP_WORDS):
        row_in = begin + row < count
        position = first + begin + row
        word = tl.load(order + position, mask=row_in, other=0).to(tl.int64)
        d_logits_at = d_logits + position[:, None] * K + state[None, :]
        left = tl.load(d_logits_at, mask=row_in[:, None] & state_in[None, :], other=0.0)
        words_at = words + word[:, None] * H + feature[None, :]
        right = tl.load(words_at, mask=row_in[:, None] & feature_in[None, :], other=0.0)
        left, right = operand(left, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRODUCT)
    to = d_emit + (group * K + state)[:, None] * H + feature[None, :]
    tl.store(to, total, mask=state_in[:, None] & feature_in[None, :])
