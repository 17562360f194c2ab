"""The choice of a block, log p(m | z) = out_z . weight_m + bias_m - log_sum_z, where a window reads it; `launch.py` calls these
kernels. Features are operands, as the products that make log_sum read them, so that rows sum to one.

    log_weights  some states of a position      the log-probability of the position's target block
    begin        some rows                      the gradient of `out` through log_sum, written before others are added
    add_up       a program a position           the gradient of weights and biases, but for that through log_sum

Through the logits `out` has its gradient in `accumulate`, beside that of the tiles. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def log_weights(
    out,
    block_weight,
    block_bias,
    log_sum,
    source_group,
    target_group,
    log_weight,
    K,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    source = tl.load(source_group + n).to(tl.int64)
    target = tl.load(target_group + n).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    weight = tl.load(block_weight + target * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    state = source * K + row
    inside = (row < K)[:, None] & (column < WIDTH)[None, :]
    features = tl.load(out + state[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
    logit = tl.sum(features * weight[None, :], axis=1) + tl.load(block_bias + target)
    normaliser = tl.load(log_sum + state, mask=row < K, other=0.0)
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


@triton.jit
@no_type_check
def add_up(
    out,
    sent,
    mean,
    source_group,
    target_group,
    d_weight,
    d_bias,
    K,
    H,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """d_weight[target] += sum over the states z left of flow_z out_z, and d_bias that of flow_z = sent_z mean_z."""
    n = tl.program_id(0).to(tl.int64)
    source = tl.load(source_group + n).to(tl.int64)
    target = tl.load(target_group + n).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    total = tl.zeros((ROWS, WIDTH_PAD), dtype=tl.float32)
    total_flow = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, K, ROWS):
        row = first + tl.arange(0, ROWS)
        flow = tl.load(sent + n * K + row, mask=row < K, other=0.0)
        flow *= tl.load(mean + n * K + row, mask=row < K, other=0.0)
        state = source * K + row
        inside = (row < K)[:, None] & (column < WIDTH)[None, :]
        features = tl.load(out + state[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += flow[:, None] * features
        total_flow += flow
    tl.atomic_add(d_weight + target * H + column, tl.sum(total, axis=0), mask=column < H, sem="relaxed")
    tl.atomic_add(d_bias + target, tl.sum(total_flow, axis=0), sem="relaxed")
