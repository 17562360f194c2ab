"""Triton kernels of the residual network: what lies between its two products and its output, and the way back.

With D the hidden features and S = ReLU(A) + D, where A = D W_2 + b_2, the output is LayerNorm(S): one kernel reads A and D
and writes it, one reads A, D and the gradient and writes those of A and S. Plain operations move the same numbers five times.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def standardised(second, hidden, at, inside, width, eps):
    """(S - its mean) / its standard deviation, with 1 / the deviation, and A."""
    raw = tl.load(second + at, mask=inside, other=0.0).to(tl.float32)
    summed = tl.maximum(raw, 0.0) + tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(summed, axis=1) / width
    centred = tl.where(inside, summed - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / width + eps)
    return centred * inverse[:, None], inverse, raw


@triton.jit
@no_type_check
def forward(
    second, hidden, norm_weight, norm_bias, output, num_rows, width, eps, WIDTH_PAD: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH_PAD)
    inside = (row < num_rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    normed, _, _ = standardised(second, hidden, at, inside, width, eps)
    weight = tl.load(norm_weight + column, mask=column < width, other=0.0)
    bias = tl.load(norm_bias + column, mask=column < width, other=0.0)
    tl.store(output + at, normed * weight[None, :] + bias[None, :], mask=inside)


@triton.jit
@no_type_check
def backward(
    second,
    hidden,
    norm_weight,
    grad,
    d_second,
    d_summed,
    d_norm_weight,
    d_norm_bias,
    d_second_bias,
    num_rows,
    width,
    stretch,
    eps,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The gradients of A and S; those of the parameters summed over the rows of a program, one row of sums each.

    With y = (S - mean) / deviation and g = grad * weight: dS = (g - mean of g - y * mean of g y) / deviation.
    """
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    column_in = column < width
    weight = tl.load(norm_weight + column, mask=column_in, other=0.0)
    sum_weight = tl.zeros((WIDTH_PAD,), dtype=tl.float32)
    sum_bias = tl.zeros((WIDTH_PAD,), dtype=tl.float32)
    sum_second = tl.zeros((WIDTH_PAD,), dtype=tl.float32)
    for step in range(stretch):
        row = (program * stretch + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < num_rows)[:, None] & column_in[None, :]
        at = row[:, None] * width + column[None, :]
        normed, inverse, raw = standardised(second, hidden, at, inside, width, eps)
        g_output = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        sum_weight += tl.sum(g_output * normed, axis=0)
        sum_bias += tl.sum(g_output, axis=0)
        g = g_output * weight[None, :]
        mean_g = tl.sum(g, axis=1) / width
        mean_along = tl.sum(g * normed, axis=1) / width
        d = (g - mean_g[:, None] - normed * mean_along[:, None]) * inverse[:, None]
        tl.store(d_summed + at, d.to(d_summed.dtype.element_ty), mask=inside)
        through = tl.where(inside & (raw > 0.0), d, 0.0)
        tl.store(d_second + at, through.to(d_second.dtype.element_ty), mask=inside)
        sum_second += tl.sum(through, axis=0)
    own = program * width + column
    tl.store(d_norm_weight + own, sum_weight, mask=column_in)
    tl.store(d_norm_bias + own, sum_bias, mask=column_in)
    tl.store(d_second_bias + own, sum_second, mask=column_in)
