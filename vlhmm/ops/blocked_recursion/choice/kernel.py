"""The choice of a block, log p(m | z) = out_z . weight_m + bias_m - log_sum_z, at the pairs that a window reads; `launch.py` calls these
kernels. Features are rounded to the operand type, as in the products that compute log_sum, so that rows sum to one.

    log_weights  some states of some positions  the log-probability of a position's target block
    begin        some rows                      the gradient of `out` through log_sum, written before others are added
    add_up       some states of some positions  the gradient of weights and biases, but for that through log_sum

Through the logits `out` has its gradient in `accumulate`, beside that of the tiles. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def rows_of(features, first, row, K, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr):
    """Rows of the states of a group, whose first state it is."""
    column = tl.arange(0, WIDTH_PAD)
    inside = (row < K)[:, None] & (column < WIDTH)[None, :]
    return tl.load(features + (first + row)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["num_positions"])
@no_type_check
def log_weights(
    out,
    block_weight,
    block_bias,
    log_sum,
    order,
    source_group,
    target_group,
    log_weight,
    num_positions,
    K,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """For positions sorted by source group: a group's features stay in registers for all consecutive positions of that group."""
    first = tl.program_id(0).to(tl.int64) * STRETCH
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    group = tl.load(source_group + first).to(tl.int64)
    features = rows_of(out, group * K, row, K, WIDTH, WIDTH_PAD)
    normaliser = tl.load(log_sum + group * K + row, mask=row < K, other=0.0)
    for p in range(first, tl.minimum(first + STRETCH, num_positions)):
        own = tl.load(source_group + p).to(tl.int64)
        if own != group:
            features = rows_of(out, own * K, row, K, WIDTH, WIDTH_PAD)
            normaliser = tl.load(log_sum + own * K + row, mask=row < K, other=0.0)
            group = own
        n = tl.load(order + p).to(tl.int64)
        target = tl.load(target_group + p).to(tl.int64)
        weight = tl.load(block_weight + target * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        logit = tl.sum(features.to(tl.float32) * weight[None, :], axis=1) + tl.load(block_bias + target)
        tl.store(log_weight + n * K + row, logit - normaliser, mask=row < K)


@triton.jit
@no_type_check
def begin(mean, d_log_sum, gradient, num_rows, H, stride, WIDTH_PAD: tl.constexpr, ROWS: tl.constexpr):
    """gradient_z = d_log_sum_z mean_z, 0 up to the stride."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    here = row < num_rows
    by = tl.load(d_log_sum + row, mask=here, other=0.0)
    value = tl.load(mean + row[:, None] * H + column[None, :], mask=here[:, None] & (column < H)[None, :], other=0.0)
    at = gradient + row[:, None] * stride + column[None, :]
    tl.store(at, by[:, None] * value, mask=here[:, None] & (column < stride)[None, :])


@triton.jit(do_not_specialize=["num_positions"])
@no_type_check
def add_up(
    out,
    sent,
    mean,
    order,
    source_group,
    target_group,
    d_weight,
    d_bias,
    num_positions,
    K,
    H,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """d_weight[target] += sum over the states z left of flow_z out_z, and d_bias that of flow_z = sent_z mean_z; in the same order."""
    first = tl.program_id(0).to(tl.int64) * STRETCH
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    group = tl.load(source_group + first).to(tl.int64)
    features = rows_of(out, group * K, row, K, WIDTH, WIDTH_PAD)
    for p in range(first, tl.minimum(first + STRETCH, num_positions)):
        own = tl.load(source_group + p).to(tl.int64)
        if own != group:
            features = rows_of(out, own * K, row, K, WIDTH, WIDTH_PAD)
            group = own
        n = tl.load(order + p).to(tl.int64)
        target = tl.load(target_group + p).to(tl.int64)
        flow = tl.load(sent + n * K + row, mask=row < K, other=0.0)
        flow *= tl.load(mean + n * K + row, mask=row < K, other=0.0)
        total = tl.sum(features.to(tl.float32) * flow[:, None], axis=0)
        tl.atomic_add(d_weight + target * H + column, total, mask=column < H, sem="relaxed")
        tl.atomic_add(d_bias + target, tl.sum(flow, axis=0), sem="relaxed")
