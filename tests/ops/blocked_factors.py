"""Random factors of a blocked recursion, and what kernels make of them beside the specification; shared by its tests."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.ops.blocked_recursion import BlockedFactors, Precision, blocked_recursion_by_kernels, reference
from vlhmm.ops.blocked_recursion.tilings import Tiling
from vlhmm.records import named_tensors
from vlhmm.transitions import BlockFactoredTransition, BlockSoftmaxTransition, SoftmaxTransition, TableTransition

FACTORS = ("log_previous", "log_inits", "log_emission")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = (BlockFactoredTransition, BlockSoftmaxTransition, SoftmaxTransition, TableTransition)

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
    if kind is TableTransition:
        transition = kind((out @ into.T).log_softmax(1))
    elif kind is BlockFactoredTransition:
        transition = kind(normal(sources * states, groups).log_softmax(1), out, into)
    elif kind is BlockSoftmaxTransition:
        transition = kind(out, into, normal(groups, width), normal(groups))
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
        transition=transition.operands(),
        source_group=source_group,
        target_group=integers(0, groups, batch, positions),
        log_emission=normal(batch, positions, states) - 3,
        lengths=lengths,
    )


def leaves_of(factors: BlockedFactors) -> dict[str, Tensor]:
    return {name: getattr(factors, name) for name in FACTORS} | named_tensors(factors.transition)


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


def check_kernels(
    factors: BlockedFactors, precision: Precision, device: str = DEVICE, tiling: Tiling | None = None
) -> None:
    cotangents = cotangents_for(factors)

    def by_kernels(given: BlockedFactors) -> object:
        return blocked_recursion_by_kernels(given, precision, tiling)

    of_features = factors.transition.block_weight is not None
    if precision == "tf32" and of_features:
        with pytest.raises(ValueError, match="tf32"):
            by_kernels(moved_to(factors, device))
        return
    # What rounded features mean for p(block | state) is exact: short sequences would show the rounding, not the kernels.
    specified = rounded_features if precision == "bf16" and of_features else lambda given: given
    expected = results(
        lambda given: reference.blocked_recursion(specified(given)),
        moved_to(factors, device, torch.float64),
        cotangents,
    )
    found = results(by_kernels, moved_to(factors, device), cotangents)
    assert_close(found, expected, precision)


def rounded_features(factors: BlockedFactors) -> BlockedFactors:
    names = ("out", "into", "block_weight")
    features = {name: getattr(factors.transition, name) for name in names}
    rounded = {name: value.bfloat16().to(value.dtype) for name, value in features.items()}
    return replace(factors, transition=replace(factors.transition, **rounded))
