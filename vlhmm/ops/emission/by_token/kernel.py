"""The emission of a text's tokens on a GPU; `launch.py` calls these kernels. For token n of word x, cotangent g:

    log_sums         a part of the rows    log sum exp over them, for each column
    rows_of_table    a program a token     row n = logits[x] - log_normalizer
    rows_of_factors  some tokens           row n = word_x . emit - log_normalizer
    sums             a part of the rows    the sum of g over them, for each column
    table_gradient   a program a word      the sum of g over the word's tokens, less p times the sum of g over all
    d_token_rows     some tokens           sum over z of g emit_z, and the sums of g over these tokens
    d_emit_parts     a part of the tokens  sum over them of g word_x

Reductions over all words or tokens are written as one partial sum for each part and column: there are no atomics. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.emission.kernel import operand


@triton.jit
@no_type_check
def log_sums(table, result, num_rows, K, part_rows, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """result[part] = log sum exp of the part's rows; -inf where all are."""
    part = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    end = tl.minimum((part + 1) * part_rows, num_rows)
    # Each thread keeps a running maximum of its own: one for each column would need a reduction across threads at every step.
    peak = tl.full((ROWS, BLOCK_K), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK_K), dtype=tl.float32)
    for first in range(part * part_rows, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (k < K)[None, :]
        value = tl.load(table + row[:, None] * K + k[None, :], mask=inside, other=float("-inf"))
        new_peak = tl.maximum(peak, value)
        # -inf - -inf would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        total = total * tl.exp(peak - shift) + tl.exp(value - shift)
        peak = new_peak
    highest = tl.max(peak, axis=0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    whole = tl.sum(total * tl.exp(peak - shift[None, :]), axis=0)
    log_sum = tl.where(whole > 0, shift + tl.log(tl.where(whole > 0, whole, 1.0)), float("-inf"))
    # Comparisons with NaN are false: NaN is propagated explicitly.
    log_sum = tl.where(whole == whole, log_sum, whole)
    tl.store(result + part * K + k, log_sum, mask=k < K)


@triton.jit
@no_type_check
def rows_of_table(logits, tokens, log_normalizer, rows, X, K, BLOCK_K: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    word = tl.load(tokens + n).to(tl.int64)
    known = (word >= 0) & (word < X)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        logit = tl.load(logits + word * K + k, mask=known & (k < K), other=float("nan"))
        tl.store(rows + n * K + k, logit - tl.load(log_normalizer + k, mask=k < K, other=0.0), mask=k < K)


@triton.jit
@no_type_check
def rows_of_factors(
    emit,
    words,
    tokens,
    log_normalizer,
    rows,
    N,
    X,
    K,
    H,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS: tl.constexpr,
    STATES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    state = tl.program_id(1) * STATES + tl.arange(0, STATES)
    feature = tl.arange(0, WIDTH)
    state_in, feature_in = state < K, (feature < H)[None, :]
    right = tl.load(
        emit + state[:, None].to(tl.int64) * H + feature[None, :], mask=state_in[:, None] & feature_in, other=0.0
    )
    word = tl.load(tokens + n, mask=n < N, other=-1).to(tl.int64)
    known = (word >= 0) & (word < X)
    left = tl.load(words + word[:, None] * H + feature[None, :], mask=known[:, None] & feature_in, other=0.0)
    left, right = operand(left, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
    logit = tl.dot(left, tl.trans(right), input_precision=PRODUCT)
    value = logit - tl.load(log_normalizer + state, mask=state_in, other=0.0)[None, :]
    value = tl.where(known[:, None], value, float("nan"))
    tl.store(rows + n[:, None] * K + state[None, :], value, mask=(n < N)[:, None] & state_in[None, :])


@triton.jit
@no_type_check
def sums(table, result, num_rows, K, part_rows, NEGATE: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """result[part] = the sum of the part's rows, or minus it."""
    part = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    end = tl.minimum((part + 1) * part_rows, num_rows)
    total = tl.zeros((ROWS, BLOCK_K), dtype=tl.float32)
    for first in range(part * part_rows, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (k < K)[None, :]
        total += tl.load(table + row[:, None] * K + k[None, :], mask=inside, other=0.0)
    whole = tl.sum(total, axis=0)
    if NEGATE:
        whole = -whole
    tl.store(result + part * K + k, whole, mask=k < K)


@triton.jit
@no_type_check
def table_gradient(
    grad,
    order,
    bounds,
    logits,
    log_normalizer,
    minus_sums,
    d_logits,
    K,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The word's tokens are order[bounds[x]], ..., order[bounds[x + 1] - 1]."""
    word = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    # These loads are issued before those of the word's tokens: most words have none.
    logit = tl.load(logits + word * K + k, mask=k < K, other=float("-inf"))
    shift = tl.load(log_normalizer + k, mask=k < K, other=0.0)
    factor = tl.load(minus_sums + k, mask=k < K, other=0.0)
    first = tl.load(bounds + word)
    end = tl.load(bounds + word + 1)
    total = tl.exp(logit - shift) * factor
    for begin in range(first, end, ROWS):
        at = begin + tl.arange(0, ROWS)
        token = tl.load(order + at, mask=at < end, other=0).to(tl.int64)
        inside = (at < end)[:, None] & (k < K)[None, :]
        total += tl.sum(tl.load(grad + token[:, None] * K + k[None, :], mask=inside, other=0.0), axis=0)
    tl.store(d_logits + word * K + k, total, mask=k < K)


@triton.jit
@no_type_check
def d_token_rows(
    grad,
    emit,
    d_rows,
    part_sums,
    N,
    K,
    H,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    part = tl.program_id(0).to(tl.int64)
    n = part * TOKENS + tl.arange(0, TOKENS)
    feature = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    token_in, feature_in = (n < N)[:, None], (feature < H)[None, :]
    total = tl.zeros((TOKENS, BLOCK_H), dtype=tl.float32)
    for begin in range(0, K, STATES):
        state = begin + tl.arange(0, STATES)
        g = tl.load(grad + n[:, None] * K + state[None, :], mask=token_in & (state < K)[None, :], other=0.0)
        right = tl.load(
            emit + state[:, None].to(tl.int64) * H + feature[None, :], mask=(state < K)[:, None] & feature_in, other=0.0
        )
        tl.store(part_sums + part * K + state, tl.sum(g, axis=0), mask=(state < K) & (tl.program_id(1) == 0))
        left, right = operand(g, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
        total = tl.dot(left, right, total, input_precision=PRODUCT)
    tl.store(d_rows + n[:, None] * H + feature[None, :], total, mask=token_in & feature_in)


@triton.jit
@no_type_check
def d_emit_parts(
    grad,
    words,
    tokens,
    d_emit,
    N,
    X,
    K,
    H,
    part_tokens,
    PRECISION: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    part = tl.program_id(0).to(tl.int64)
    state = tl.program_id(1) * STATES + tl.arange(0, STATES)
    feature = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
    state_in, feature_in = state < K, (feature < H)[None, :]
    end = tl.minimum((part + 1) * part_tokens, N)
    total = tl.zeros((STATES, BLOCK_H), dtype=tl.float32)
    for first in range(part * part_tokens, end, TOKENS):
        n = first + tl.arange(0, TOKENS)
        word = tl.load(tokens + n, mask=n < end, other=-1).to(tl.int64)
        known = (word >= 0) & (word < X)
        left = tl.load(grad + n[:, None] * K + state[None, :], mask=known[:, None] & state_in[None, :], other=0.0)
        right = tl.load(words + word[:, None] * H + feature[None, :], mask=known[:, None] & feature_in, other=0.0)
        left, right = operand(left, PRECISION, PRODUCT), operand(right, PRECISION, PRODUCT)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRODUCT)
    to = d_emit + (part * K + state)[:, None] * H + feature[None, :]
    tl.store(to, total, mask=state_in[:, None] & feature_in)
