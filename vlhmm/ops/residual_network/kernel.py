"""Triton kernels of the residual networks: what lies between the products and the output, and the backward pass.

With D the hidden features and S = ReLU(A) + D, where A = D W_2 + b_2, the output is LayerNorm(S): one kernel reads A and D
and writes it, one reads A, D and the gradient and writes those of A and S. Plain operations move the same numbers five times.

Tensors that each network has of its own come as tuples; the programs' second axis says which network. Kernels of the backward pass
leave sums over their rows, which gradients of biases are, one row of sums for each program.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def standardised(raw, hidden, inside, width, eps):
    """(S - its mean) / its standard deviation, and 1 / the deviation."""
    summed = tl.maximum(raw, 0.0) + hidden
    mean = tl.sum(summed, axis=1) / width
    centred = tl.where(inside, summed - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / width + eps)
    return centred * inverse[:, None], inverse


@triton.jit
@no_type_check
def forward(
    seconds,
    hiddens,
    norm_weights,
    norm_biases,
    outputs,
    num_rows,
    width,
    hidden_stride,
    eps,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    for network in tl.static_range(len(seconds)):
        if tl.program_id(1) == network:
            row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
            column = tl.arange(0, WIDTH_PAD)
            inside = (row < num_rows[network])[:, None] & (column < width)[None, :]
            at = row[:, None] * width + column[None, :]
            hidden_at = row[:, None] * hidden_stride + column[None, :]
            raw = tl.load(seconds[network] + at, mask=inside, other=0.0).to(tl.float32)
            before = tl.load(hiddens[network] + hidden_at, mask=inside, other=0.0).to(tl.float32)
            normed, _ = standardised(raw, before, inside, width, eps)
            weight = tl.load(norm_weights[network] + column, mask=column < width, other=0.0)
            bias = tl.load(norm_biases[network] + column, mask=column < width, other=0.0)
            value = normed * weight[None, :] + bias[None, :]
            tl.store(outputs[network] + at, value.to(outputs[network].dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def backward(
    seconds,
    hiddens,
    norm_weights,
    grads,
    d_seconds,
    d_summed,
    sums,
    num_rows,
    width,
    hidden_stride,
    program_stride,
    kind_stride,
    stretch,
    eps,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradients of A and S, and the sums that are those of the LayerNorm's weight and bias and of b_2."""
    for network in tl.static_range(len(seconds)):
        if tl.program_id(1) == network:
            backward_of_one(
                seconds[network],
                hiddens[network],
                norm_weights[network],
                grads[network],
                d_seconds[network],
                d_summed[network],
                sums + network * width,
                num_rows[network],
                width,
                hidden_stride,
                program_stride,
                kind_stride,
                stretch,
                eps,
                WIDTH_PAD,
                ROWS,
                STAGES,
            )


@triton.jit
@no_type_check
def backward_of_one(
    second,
    hidden,
    norm_weight,
    grad,
    d_second,
    d_summed,
    sums,
    num_rows,
    width,
    hidden_stride,
    program_stride,
    kind_stride,
    stretch,
    eps,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """With y = (S - mean) / deviation and g = grad * weight: dS = (g - mean of g - y * mean of g y) / deviation."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    column_in = column < width
    weight = tl.load(norm_weight + column, mask=column_in, other=0.0)
    # Reduced over rows once, at the end: a reduction across warps needs a barrier.
    sum_weight = tl.zeros((ROWS, WIDTH_PAD), dtype=tl.float32)
    sum_bias = tl.zeros((ROWS, WIDTH_PAD), dtype=tl.float32)
    sum_second = tl.zeros((ROWS, WIDTH_PAD), dtype=tl.float32)
    # Software pipelining: rows are prefetched while earlier ones are processed.
    for step in tl.range(0, stretch, num_stages=STAGES):
        row = (program * stretch + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < num_rows)[:, None] & column_in[None, :]
        at = row[:, None] * width + column[None, :]
        raw = tl.load(second + at, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(hidden + row[:, None] * hidden_stride + column[None, :], mask=inside, other=0.0)
        g_output = tl.load(grad + at, mask=inside, other=0.0)
        normed, inverse = standardised(raw, before.to(tl.float32), inside, width, eps)
        sum_weight += g_output * normed
        sum_bias += g_output
        g = g_output * weight[None, :]
        mean_g = tl.sum(g, axis=1) / width
        mean_along = tl.sum(g * normed, axis=1) / width
        d = (g - mean_g[:, None] - normed * mean_along[:, None]) * inverse[:, None]
        tl.store(d_summed + at, d.to(d_summed.dtype.element_ty), mask=inside)
        through = tl.where(inside & (raw > 0.0), d, 0.0)
        tl.store(d_second + at, through.to(d_second.dtype.element_ty), mask=inside)
        sum_second += through
    own = sums + program * program_stride + column
    tl.store(own, tl.sum(sum_weight, axis=0), mask=column_in)
    tl.store(own + kind_stride, tl.sum(sum_bias, axis=0), mask=column_in)
    tl.store(own + 2 * kind_stride, tl.sum(sum_second, axis=0), mask=column_in)


@triton.jit
@no_type_check
def backward_of_relu(
    hiddens,
    d_hiddens,
    d_firsts,
    sums,
    num_rows,
    num_written,
    width,
    hidden_stride,
    program_stride,
    kind_stride,
    stretch,
    WIDTH_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of E W_1 + b_1 from that of D, and its sums, which are that of b_1; zeros behind the last row."""
    for network in tl.static_range(len(hiddens)):
        if tl.program_id(1) == network:
            program = tl.program_id(0).to(tl.int64)
            column = tl.arange(0, WIDTH_PAD)
            column_in = column < width
            sum_first = tl.zeros((ROWS, WIDTH_PAD), dtype=tl.float32)
            for step in tl.range(0, stretch, num_stages=STAGES):
                row = (program * stretch + step) * ROWS + tl.arange(0, ROWS)
                inside = (row < num_rows[network])[:, None] & column_in[None, :]
                written = (row < num_written)[:, None] & column_in[None, :]
                at = row[:, None] * width + column[None, :]
                hidden_at = row[:, None] * hidden_stride + column[None, :]
                before = tl.load(hiddens[network] + hidden_at, mask=inside, other=0.0).to(tl.float32)
                d = tl.load(d_hiddens[network] + at, mask=inside, other=0.0).to(tl.float32)
                through = tl.where(before > 0.0, d, 0.0)
                tl.store(d_firsts[network] + hidden_at, through.to(d_firsts[network].dtype.element_ty), mask=written)
                sum_first += through
            own = sums + network * width + program * program_stride + 3 * kind_stride + column
            tl.store(own, tl.sum(sum_first, axis=0), mask=column_in)


@triton.jit
@no_type_check
def add_up(sums, total, num_programs, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of all programs."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    so_far = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, num_programs, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < num_programs)[:, None] & (column < num_columns)[None, :]
        so_far += tl.load(sums + row[:, None] * num_columns + column[None, :], mask=inside, other=0.0)
    tl.store(total + column, tl.sum(so_far, axis=0), mask=column < num_columns)
