"""The blocked recursion against its specification: the CPU path, and the kernels, interpreted here or on a GPU."""

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.ops.blocked_recursion import (
    BlockedFactors,
    Precision,
    blocked_recursion,
    blocked_recursion_by_kernels,
    reference,
)
from vlhmm.tables import BlockFactoredTransition, SoftmaxTransition

FACTORS = ("log_previous", "log_inits", "log_emission")
KINDS = (BlockFactoredTransition, SoftmaxTransition)

# Relative errors by norm, for the value (log p(x) of a sequence) and for gradients: bf16 keeps 8 bits, tf32 11.
TOLERANCE: dict[Precision, tuple[float, float]] = {"bf16": (3e-4, 2e-2), "tf32": (3e-5, 3e-3), "highest": (1e-6, 2e-5)}


def random_factors(
    kind: type,
    seed: int = 0,
    batch: int = 3,
    positions: int = 5,
    states: int = 5,
    groups: int = 4,
    width: int = 7,
    entering: int = 1,
    dtype: torch.dtype = torch.float32,
) -> BlockedFactors:
    """A third of the positions begin anew, lengths are ragged, and more groups are left than entered."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    sources = groups + entering
    out, into = normal(sources * states, width) * (2.0 / width**0.5), normal(groups * states, width)
    if kind is BlockFactoredTransition:
        transition = kind(normal(sources * states, groups).log_softmax(1), out, into)
    else:
        transition = kind(out, into, (out @ into.T).logsumexp(1))
    source_group = integers(0, groups, batch, positions)
    source_group[:, 0] = integers(groups, sources, batch) if entering else source_group[:, 0]
    lengths = integers(1, positions + 1, batch)
    lengths[0] = positions
    return BlockedFactors(
        log_previous=normal(batch, states).log_softmax(1),
        log_inits=normal(2, states).log_softmax(1),
        init_of=integers(-4, 2, batch, positions).clamp(min=-1),
        transition=transition,
        source_group=source_group,
        target_group=integers(0, groups, batch, positions),
        log_emission=normal(batch, positions, states) - 3,
        lengths=lengths,
    )


def leaves_of(factors: BlockedFactors) -> dict[str, Tensor]:
    transition = {field.name: getattr(factors.transition, field.name) for field in fields(factors.transition)}
    return {name: getattr(factors, name) for name in FACTORS} | transition


def with_leaves(factors: BlockedFactors, leaves: dict[str, Tensor]) -> BlockedFactors:
    transition = {name: leaf for name, leaf in leaves.items() if name not in FACTORS}
    own = {name: leaves[name] for name in FACTORS}
    return replace(factors, **own, transition=replace(factors.transition, **transition))


def moved_to(factors: BlockedFactors, device: str, dtype: torch.dtype | None = None) -> BlockedFactors:
    moved = with_leaves(factors, {name: leaf.to(device, dtype) for name, leaf in leaves_of(factors).items()})
    integers = ("init_of", "source_group", "target_group", "lengths")
    return replace(moved, **{name: getattr(moved, name).to(device) for name in integers})


def results(run: object, factors: BlockedFactors, cotangents: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Values and every gradient, by name."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves_of(factors).items()}
    found = run(with_leaves(factors, leaves))  # type: ignore[operator]
    token_log_probs, log_last = found if isinstance(found, tuple) else (found.token_log_probs, found.log_last)
    wanted = [token_log_probs, log_last], [cotangent.to(log_last) for cotangent in cotangents]
    # An impossible token's cotangent meets -inf only in the reference's constants.
    gradients = torch.autograd.grad(wanted[0], tuple(leaves.values()), wanted[1], allow_unused=True)
    named = {
        name: torch.zeros_like(leaf) if one is None else one
        for (name, leaf), one in zip(leaves.items(), gradients, strict=True)
    }
    return {"token_log_probs": token_log_probs.detach(), "last": log_last.detach().exp()} | named


def cotangents_for(factors: BlockedFactors, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    batch, positions, states = factors.log_emission.shape
    token = torch.rand(batch, positions, generator=generator, dtype=torch.float64) + 0.5
    return token, torch.randn(batch, states, generator=generator, dtype=torch.float64) / states


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], precision: Precision) -> None:
    value_tolerance, gradient_tolerance = TOLERANCE[precision]
    for name, theirs in expected.items():
        ours = found[name].double().cpu()
        theirs = theirs.cpu()
        assert ours.isfinite().all(), f"{name} is not finite"
        if name == "token_log_probs":
            assert (ours.sum(1) - theirs.sum(1)).abs().le(value_tolerance * theirs.sum(1).abs()).all(), name
            # Past the length it is 0 exactly.
            assert torch.equal(ours == 0, theirs == 0)
        error = (ours - theirs).norm() / theirs.norm().clamp(min=1e-6)
        assert error <= gradient_tolerance, f"{name}: relative error {error:.2e}"
        # By element, so that a wrong entry cannot hide in the norm of the others.
        assert (ours - theirs).abs().max() <= 2 * gradient_tolerance * theirs.abs().max().clamp(min=1e-6), name


def check_kernels(factors: BlockedFactors, precision: Precision, device: str) -> None:
    cotangents = cotangents_for(factors)
    expected = results(reference.blocked_recursion, moved_to(factors, device, torch.float64), cotangents)
    found = results(
        lambda given: blocked_recursion_by_kernels(given, precision), moved_to(factors, device), cotangents
    )
    assert_close(found, expected, precision)


@pytest.fixture(autouse=True)
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that a kernel ought to write, and does not, is NaN."""
    empty_like, new_empty = torch.empty_like, Tensor.new_empty

    def poisoned(tensor: Tensor) -> Tensor:
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.fill_(127)

    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: poisoned(empty_like(*given, **named)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *given, **named: poisoned(new_empty(*given, **named)))
    return


@pytest.mark.parametrize("kind", KINDS)
def test_the_cpu_path_equals_the_reference(kind: type) -> None:
    factors = random_factors(kind, dtype=torch.float64)
    cotangents = cotangents_for(factors)
    expected = results(reference.blocked_recursion, factors, cotangents)
    for name, found in results(blocked_recursion, factors, cotangents).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-9, atol=1e-11)


SHAPES = [
    # Odd sizes; one state and one position; more states than a program holds rows of; a width of two pieces.
    {"batch": 3, "positions": 5, "states": 5, "groups": 4, "width": 7},
    {"batch": 1, "positions": 1, "states": 1, "groups": 2, "width": 3, "entering": 0},
    {"batch": 2, "positions": 4, "states": 17, "groups": 3, "width": 70},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_equal_the_reference(kind: type, shape: dict[str, int]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check_kernels(random_factors(kind, seed=2, **shape), "highest", device)


@pytest.fixture
def true_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts numbers off to bf16 and multiplies their bits: here it rounds, and multiplies numbers."""
    if torch.cuda.is_available():
        return
    import triton.language as tl
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
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_within_the_error_of_their_precision(kind: type, precision: Precision) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The bound is one for a sequence of 64 tokens.
    check_kernels(random_factors(kind, seed=3, batch=1, positions=64, states=9, width=12), precision, device)
