"""Rounded operands of the blocked recursion: within their errors, and steps by matrix units as good as those without."""

import os
from dataclasses import replace
from functools import partial
from typing import Any, no_type_check

import numpy as np
import pytest
import torch
from blocked_factors import (
    DEVICE,
    KINDS,
    assert_close,
    check_kernels,
    cotangents_for,
    moved_to,
    random_factors,
    results,
)

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

from vlhmm.ops.blocked_recursion import blocked_recursion_by_kernels, kernel, reference
from vlhmm.ops.blocked_recursion.tilings import tiling_for
from vlhmm.transitions import BlockFactoredTransition, SoftmaxTransition

pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


@pytest.fixture
def true_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts numbers off to bf16 and multiplies their bits: here it rounds, and multiplies numbers."""
    if torch.cuda.is_available():
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, create_dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def rounding_cast(self: Any, value: Any, dtype: Any) -> Any:
        if value.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
            rounded = torch.tensor(value.data).bfloat16().view(torch.int16).numpy().view(np.uint16)
            return TensorHandle(rounded, tl.bfloat16)
        return cast(self, value, dtype)

    def dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        widened = (cast(self, one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (left, right))
        return create_dot(self, *widened, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    for name in ("cast_impl", "create_fp_trunc"):
        monkeypatch.setattr(InterpreterBuilder, name, rounding_cast)


@pytest.mark.usefixtures("true_bf16")
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_operands_are_within_their_error(kind: type) -> None:
    # The bound is one for a sequence of 64 tokens.
    check_kernels(random_factors(kind, 3, batch=1, positions=64, states=9, width=12), "bf16")


@triton.jit
@no_type_check
def store_parts(vector, parts, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE), tl.arange(0, 16)
    value = kernel.in_parts(tl.load(vector + row), 16)
    tl.store(parts + row[:, None] * 16 + column[None, :], value.to(tl.float32))


@pytest.mark.usefixtures("true_bf16")
def test_three_parts_of_bf16_sum_to_the_vector_exactly() -> None:
    # From 1 down to where a message counts as faded.
    vector = torch.rand(128, generator=torch.Generator().manual_seed(0)) * 10 ** -torch.linspace(0, 28, 128)
    vector = torch.cat([vector, -1e9 * vector]).to(DEVICE)
    parts = vector.new_empty(256, 16)
    store_parts[(1,)](vector, parts, 256)
    assert torch.equal(parts.bfloat16().float(), parts)
    assert torch.equal(parts.double().sum(1), vector.double())


@pytest.mark.usefixtures("true_bf16")
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", [BlockFactoredTransition, SoftmaxTransition])
def test_steps_by_matrix_units_equal_those_without(kind: type, pieces: int) -> None:
    """Vectors in three parts of bf16 lose nothing: tiles alone are rounded."""
    factors = moved_to(random_factors(kind, 18, batch=2, positions=6, states=19, width=12), DEVICE)
    size = 32 // pieces
    without = replace(tiling_for(19, "bf16"), forward_rows=size, backward_columns=size)
    found, expected = (
        results(
            partial(blocked_recursion_by_kernels, precision="bf16", tiling=tiling), factors, cotangents_for(factors)
        )
        for tiling in (replace(without, forward_parts=16, backward_parts=16), without)
    )
    assert_close(found, {name: value.double() for name, value in expected.items()}, "highest")


@pytest.mark.parametrize("kind", KINDS)
def test_tf32_operands_are_within_their_error(kind: type) -> None:
    check_kernels(random_factors(kind, 3, batch=1, positions=64 if DEVICE == "cuda" else 4), "tf32")


@pytest.mark.parametrize(
    "shape", [(2, 16, 5, 4, 32), pytest.param((5, 64, 128, 16, 256), marks=pytest.mark.gpu)], ids=str
)
@pytest.mark.parametrize("kind", [BlockFactoredTransition, SoftmaxTransition])
def test_tf32_logits_are_as_good_as_float32(kind: type, shape: tuple[int, int, int, int, int]) -> None:
    """Features N(0, 1): the logits are in the tens, and operands of tf32 alone would put log p off by more than 3e-5."""
    factors = random_factors(kind, 3, *shape, dtype=torch.float64)
    out = (factors.transition.out * (shape[-1] ** 0.5 / 2)).float().double()
    into = factors.transition.into.float().double()
    transition = replace(factors.transition, out=out, into=into)
    if not transition.per_block:
        transition = replace(transition, row_term=(out @ into.T).logsumexp(1))
    factors = replace(factors, transition=transition, init_of=torch.full_like(factors.init_of, -1))
    expected = reference.blocked_recursion(factors)[0].sum(1)
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE, torch.float32), "tf32")
    found = run.token_log_probs.double().sum(1).cpu()
    # The matrix units cut sums off at 24 bits, always towards zero.
    assert ((found - expected).abs() <= (1e-5 if DEVICE == "cuda" else 1e-6) * expected.abs()).all()
