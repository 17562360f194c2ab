"""The update on a GPU; `launch.py` calls these kernels, each for several parameters of like size.

squares   sums of squares of the gradients' pieces
conclude  a program: the norm, and what clipping multiplies gradients by
count     a program a parameter: its step, and AdamW's corrections of the two moments
move      clipping, AdamW and the running average of a piece
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

STEP_BITS = tl.constexpr(31)


@triton.jit
@no_type_check
def own(values, number):
    """The tuple's element at this index: a branch for each would compile the rest of the kernel once for each element."""
    found = values[0]
    for other in tl.static_range(1, len(values)):
        if number == other:
            found = values[other]
    return found


@triton.jit
@no_type_check
def squares(gradients, sizes, sums, BLOCK: tl.constexpr):
    """Each program's sum over the pieces that it reads, at its place: one row of `sums` a parameter."""
    number = tl.program_id(1)
    gradient, size = own(gradients, number), own(sizes, number)
    programs = tl.num_programs(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for piece in range(tl.program_id(0).to(tl.int64), tl.cdiv(size, BLOCK), programs):
        at = piece * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(gradient + at, mask=at < size, other=0.0)
        total += value * value
    tl.store(sums + number * programs + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
@no_type_check
def conclude(sums, num_sums, norm, factor, largest_norm, CLIP: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, num_sums, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(sums + at, mask=at < num_sums, other=0.0)
    found = tl.sqrt_rn(tl.sum(total, axis=0))
    tl.store(norm, found)
    by = 1.0
    if CLIP:
        by = tl.div_rn(largest_norm, found + 1e-6)
        # NaN is propagated, so that divergence shows.
        by = tl.where(by >= 1.0, 1.0, by)
    tl.store(factor, by)


@triton.jit
@no_type_check
def power(base: tl.constexpr, exponent):
    """base ** exponent in float64, of a whole number that is not negative."""
    result = (exponent * 0).to(tl.float64) + 1.0
    by = result * base
    for _ in range(STEP_BITS):
        result = tl.where(exponent % 2 == 1, result * by, result)
        by = by * by
        exponent = exponent // 2
    return result


@triton.jit
@no_type_check
def count(steps, corrections, BETA1: tl.constexpr, BETA2: tl.constexpr):
    """One more step of a parameter; corrections: 1 - beta1^step, and the root of 1 - beta2^step."""
    number = tl.program_id(0)
    at = own(steps, number)
    step = tl.load(at) + 1.0
    tl.store(at, step)
    whole = step.to(tl.int32)
    first = 1.0 - power(BETA1, whole)
    second = 1.0 - power(BETA2, whole)
    tl.store(corrections + 2 * number, first.to(tl.float32))
    tl.store(corrections + 2 * number + 1, tl.sqrt_rn(second.to(tl.float32)))


@triton.jit
@no_type_check
def move(
    parameters,
    gradients,
    exp_avgs,
    exp_avg_sqs,
    averages,
    sizes,
    corrections,
    rate,
    factor,
    average_weight,
    DECAY: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    AVERAGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One piece of a parameter. Moments are updated by lerp with weight 1 - beta, a compile-time constant, so that no digit of beta is lost."""
    number = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < own(sizes, number)
    parameter_at = own(parameters, number) + at
    first_at, second_at = own(exp_avgs, number) + at, own(exp_avg_sqs, number) + at
    learning_rate = tl.load(rate)
    parameter = tl.load(parameter_at, mask=inside, other=0.0)
    gradient = tl.load(own(gradients, number) + at, mask=inside, other=0.0) * tl.load(factor)
    exp_avg = tl.load(first_at, mask=inside, other=0.0)
    exp_avg_sq = tl.load(second_at, mask=inside, other=0.0)
    if AVERAGED:
        average_at = own(averages, number) + at
        average = tl.load(average_at, mask=inside, other=0.0)
        weight = tl.load(average_weight)
    exp_avg += (gradient - exp_avg) * (1 - BETA1)
    exp_avg_sq += (gradient * gradient - exp_avg_sq) * (1 - BETA2)
    tl.store(first_at, exp_avg, mask=inside)
    tl.store(second_at, exp_avg_sq, mask=inside)
    first = tl.load(corrections + 2 * number)
    second = tl.load(corrections + 2 * number + 1)
    deviation = tl.div_rn(tl.sqrt_rn(exp_avg_sq), second) + EPS
    parameter -= learning_rate * DECAY * parameter
    parameter -= tl.div_rn(tl.div_rn(learning_rate, first) * exp_avg, deviation)
    tl.store(parameter_at, parameter, mask=inside)
    if AVERAGED:
        # As torch.lerp: interpolated from the nearer end point.
        way = parameter - average
        average = tl.where(weight < 0.5, average + weight * way, parameter - way * (1.0 - weight))
        tl.store(average_at, average, mask=inside)
