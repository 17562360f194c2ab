"""The blocked recursion against its specification: the CPU path, and the kernels, interpreted here or on a GPU."""

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, no_type_check

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

from vlhmm.ops.blocked_recursion import (
    BlockedFactors,
    Precision,
    blocked_recursion,
    blocked_recursion_by_kernels,
    kernel,
    launch,
    reference,
)
from vlhmm.tables import BlockFactoredTransition, SoftmaxTransition, TableTransition

FACTORS = ("log_previous", "log_inits", "log_emission")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = (BlockFactoredTransition, SoftmaxTransition, TableTransition)

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


def check_kernels(
    factors: BlockedFactors, precision: Precision, device: str = DEVICE, cut: launch.Cut | None = None
) -> None:
    cotangents = cotangents_for(factors)
    expected = results(reference.blocked_recursion, moved_to(factors, device, torch.float64), cotangents)
    found = results(
        lambda given: blocked_recursion_by_kernels(given, precision, cut), moved_to(factors, device), cotangents
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


@pytest.mark.parametrize("shape", [(3, 5, 5, 4, 7), (1, 1, 1, 2, 3), (2, 3, 17, 3, 70), (1, 35, 3, 2, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_equal_the_reference(kind: type, shape: tuple[int, int, int, int, int]) -> None:
    check_kernels(random_factors(kind, 2, *shape), "highest")


@pytest.mark.parametrize("states", [5, 17])
def test_groups_that_share_states_equal_the_reference(states: int) -> None:
    factors = random_factors(SoftmaxTransition, 15, states=states, groups=4, entering=0)
    generator = torch.Generator().manual_seed(16)
    drawn = torch.stack([torch.randperm(4 * states, generator=generator)[:states] for _ in range(7)])
    groups = {name: torch.randint(7, (3, 5), generator=generator) for name in ("source_group", "target_group")}
    overlapping = replace(factors, **groups, states_of_group=drawn.to(DEVICE))
    check_kernels(overlapping, "highest")
    check_kernels(overlapping, "highest", cut=replace(launch.cut_for(states, "highest"), sum_programs=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_in_pieces_equals_the_reference(kind: type) -> None:
    """Groups of more states than a program holds rows of, and widths of several pieces."""
    factors = random_factors(kind, 4, batch=2, positions=3, states=19, groups=3, width=18)
    sizes = {
        "tile_rows": 16,
        "forward_rows": 16,
        "backward_columns": 16,
        "sum_rows": 16,
        "sum_inner": 16,
        "sum_width": 16,
        "tile_width": 16,
    }
    check_kernels(factors, "highest", cut=replace(launch.cut_for(19, "highest"), **sizes, sum_programs=5))


@pytest.mark.parametrize("width", [18, 34])
def test_two_products_with_one_tile_equal_the_reference(width: int) -> None:
    """Of 16 features each: 18 and 34 leave a part of the second or all of it out."""
    factors = random_factors(SoftmaxTransition, 4, batch=2, positions=3, states=19, groups=3, width=width)
    sizes = {"sum_rows": 16, "sum_inner": 16, "sum_width": 16, "sum_two": True}
    check_kernels(factors, "highest", cut=replace(launch.cut_for(19, "highest"), **sizes, sum_programs=5))


@pytest.mark.parametrize("kind", KINDS)
def test_one_group_at_every_position_is_summed_over_all(kind: type) -> None:
    factors = random_factors(kind, 5, groups=1, entering=0)
    check_kernels(factors, "highest", cut=replace(launch.cut_for(5, "highest"), sum_programs=2))


def test_tiles_far_below_one_do_not_underflow() -> None:
    factors = random_factors(SoftmaxTransition, 6)
    far = replace(factors.transition, log_normalizer=factors.transition.log_normalizer + 200)
    far_factors = replace(factors, transition=far, log_emission=factors.log_emission - 300)
    check_kernels(far_factors, "highest")
    assert not blocked_recursion_by_kernels(moved_to(far_factors, DEVICE), "highest").suspect.any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_token_ends_its_sequence_alone(kind: type) -> None:
    factors = random_factors(kind, 7)
    factors.log_emission[1, 2] = -torch.inf
    factors = replace(factors, lengths=torch.tensor([5, 5, 4]))
    # The reference, too, gives no gradient to what is impossible, if nothing is asked of it.
    cotangents = cotangents_for(factors)
    cotangents[0][1, 2:], cotangents[1][1] = 0, 0
    expected = results(reference.blocked_recursion, moved_to(factors, DEVICE, torch.float64), cotangents)
    found = results(lambda given: blocked_recursion_by_kernels(given, "highest"), moved_to(factors, DEVICE), cotangents)
    assert (found["token_log_probs"][1, 2:] == -torch.inf).all()
    for one in (found, expected):
        one["token_log_probs"][1, 2:] = 0
    assert_close(found, expected, "highest")
    # Whatever is asked of it, it has none.
    asked = results(
        lambda given: blocked_recursion_by_kernels(given, "highest"), moved_to(factors, DEVICE), cotangents_for(factors)
    )
    assert (asked["log_emission"][1, 2:] == 0).all()


def test_an_impossible_past_stays_impossible() -> None:
    factors = random_factors(BlockFactoredTransition, 8)
    factors.log_previous[1] = -torch.inf
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE), "highest")
    within = torch.arange(5) < factors.lengths[:, None]
    assert ((run.token_log_probs.cpu() == -torch.inf) == (within & torch.tensor([[False], [True], [False]]))).all()
    assert (run.log_last[1] == -torch.inf).all()


def test_states_that_cannot_be_entered_have_no_gradient() -> None:
    """A feature 1 times -inf bars a state, as in the softmax head: never 0 times -inf."""
    factors = random_factors(SoftmaxTransition, 9, width=6)
    transition = factors.transition
    transition.out[:, -1] = 1
    transition.into[2::5, -1] = -torch.inf
    transition = replace(transition, log_normalizer=(transition.out @ transition.into.T).logsumexp(1))
    factors = replace(factors, transition=transition, init_of=torch.full_like(factors.init_of, -1))
    found = results(
        lambda given: blocked_recursion_by_kernels(given, "highest"), moved_to(factors, DEVICE), cotangents_for(factors)
    )
    assert all(value.isfinite().all() for value in found.values())
    assert (found["into"][2::5] == 0).all()
    assert (found["last"][:, 2] == 0).all()
    expected, _ = reference.blocked_recursion(moved_to(factors, DEVICE, torch.float64))
    torch.testing.assert_close(found["token_log_probs"].double(), expected, rtol=1e-5, atol=1e-5)


def test_impossible_moves_of_a_table_have_no_gradient() -> None:
    """Single cells, and a whole row into one group."""
    factors = random_factors(TableTransition, 9)
    factors.transition.log_prob[:, 2::5] = -torch.inf
    factors.transition.log_prob[3, 5:10] = -torch.inf
    factors = replace(factors, init_of=torch.full_like(factors.init_of, -1))
    cotangents = cotangents_for(factors)
    cotangents[1][:, 2] = 0
    found = results(lambda given: blocked_recursion_by_kernels(given, "highest"), moved_to(factors, DEVICE), cotangents)
    expected = results(reference.blocked_recursion, moved_to(factors, DEVICE, torch.float64), cotangents)
    assert_close(found, expected, "highest")
    assert (found["log_prob"][:, 2::5] == 0).all()
    assert (found["log_prob"][3, 5:10] == 0).all()


def test_a_sequence_near_the_smallest_number_is_suspect() -> None:
    factors = random_factors(BlockFactoredTransition, 10, states=2, positions=3)
    lasting = torch.full((3, 3), -1)
    # The message is all but in state 0, of which the next word is all but impossible; the transition has zeros.
    barred = factors.transition.log_block.index_fill(0, torch.arange(1, 10, 2), -torch.inf)
    factors.log_emission[1] = torch.tensor([[0.0, -80.0], [0.0, -80.0], [0.0, -80.0]])
    transition = replace(factors.transition, log_block=barred)
    factors = replace(factors, init_of=lasting, transition=transition, lengths=torch.full((3,), 3))
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE), "highest")
    assert run.suspect.tolist() == [False, True, False]


def test_a_total_near_the_smallest_number_is_suspect_and_right() -> None:
    factors = random_factors(BlockFactoredTransition, 13, states=2, positions=1)
    # Sequence 1 is surely in state 0, which hardly ever moves to that block, while state 1 does.
    factors.log_previous[1] = torch.tensor([0.0, -torch.inf])
    factors.transition.log_block[0::2] = -80
    factors.transition.log_block[1::2] = 0
    factors = replace(factors, init_of=torch.full_like(factors.init_of, -1))
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE), "highest")
    assert run.suspect.tolist() == [False, True, False]
    expected, _ = reference.blocked_recursion(moved_to(factors, DEVICE, torch.float64))
    torch.testing.assert_close(run.token_log_probs.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_state_that_all_but_fades_and_comes_back_makes_no_gradient_infinite() -> None:
    # In sequence 1 state 1 fades to exp(-102), then explains each word better by exp(12), until it is the likely one.
    log_prob = torch.tensor([[0.0, -90.0], [-103.0, 0.0]]).repeat(2, 2)
    log_emission = torch.zeros(2, 16, 2)
    log_emission[1, :2, 1] = log_emission[1, 2:, 0] = -12.0
    factors = BlockedFactors(
        log_previous=torch.tensor([[0.0, -300.0]]).repeat(2, 1),
        log_inits=torch.zeros(1, 2),
        init_of=torch.full((2, 16), -1),
        transition=TableTransition(log_prob),
        source_group=torch.zeros(2, 16, dtype=torch.int64),
        target_group=torch.zeros(2, 16, dtype=torch.int64),
        log_emission=log_emission,
        lengths=torch.tensor([16, 16]),
    )
    cotangents = (torch.ones(2, 16), torch.zeros(2, 2))

    def run(given: BlockedFactors) -> Any:
        return blocked_recursion_by_kernels(given, "highest")

    found = results(run, moved_to(factors, DEVICE), cotangents)
    assert all(one.isfinite().all() for one in found.values())
    torch.testing.assert_close(found["log_emission"][0], torch.tensor([1.0, 0.0], device=DEVICE).expand(16, 2))


def test_nothing_to_begin_from_is_no_obstacle() -> None:
    factors = random_factors(SoftmaxTransition, 14)
    factors = moved_to(replace(factors, init_of=torch.full_like(factors.init_of, -1)), DEVICE)
    without = replace(factors, log_inits=factors.log_inits[:0])
    found, expected = (blocked_recursion_by_kernels(one, "highest").token_log_probs for one in (without, factors))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ["token_log_probs", "log_last"])
def test_what_nothing_is_asked_of_is_as_if_asked_with_zeros(kind: type, asked: str) -> None:
    factors = moved_to(random_factors(kind, 17), DEVICE)
    leaves = {name: leaf.clone().requires_grad_(name != "log_inits") for name, leaf in leaves_of(factors).items()}
    run = blocked_recursion_by_kernels(with_leaves(factors, leaves), "highest")
    cotangents = dict(zip(("token_log_probs", "log_last"), cotangents_for(factors), strict=True))
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    found = torch.autograd.grad(getattr(run, asked), wanted, cotangents[asked].to(run.log_last))
    only = {name: one if name == asked else torch.zeros_like(one) for name, one in cotangents.items()}
    expected = results(
        lambda given: blocked_recursion_by_kernels(given, "highest"),
        factors,
        (only["token_log_probs"], only["log_last"]),
    )
    for gradient, name in zip(found, (name for name in leaves if name != "log_inits"), strict=True):
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)


def test_too_many_states_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1025 states.*at most 1024"):
        launch.cut_for(1025, "bf16")


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
    without = replace(launch.cut_for(19, "bf16"), forward_rows=size, backward_columns=size)
    found, expected = (
        results(partial(blocked_recursion_by_kernels, precision="bf16", cut=cut), factors, cotangents_for(factors))
        for cut in (replace(without, forward_parts=16, backward_parts=16), without)
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
    if isinstance(transition, SoftmaxTransition):
        transition = replace(transition, log_normalizer=(out @ into.T).logsumexp(1))
    factors = replace(factors, transition=transition, init_of=torch.full_like(factors.init_of, -1))
    expected = reference.blocked_recursion(factors)[0].sum(1)
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE, torch.float32), "tf32")
    found = run.token_log_probs.double().sum(1).cpu()
    # The matrix units cut sums off at 24 bits, always towards zero.
    assert ((found - expected).abs() <= (1e-5 if DEVICE == "cuda" else 1e-6) * expected.abs()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "tf32", "highest"])
@pytest.mark.parametrize(
    "shape",
    [
        (5, 64, 128, 16, 256),
        (3, 64, 100, 9, 257),
        (2, 33, 130, 5, 100),
        (2, 20, 300, 4, 64),
        (6, 40, 64, 12, 256),
        (3, 30, 20, 7, 80),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_at_full_size_equal_the_reference(
    kind: type, shape: tuple[int, int, int, int, int], precision: Precision
) -> None:
    check_kernels(random_factors(kind, 11, *shape), precision)


@pytest.mark.gpu
def test_a_captured_graph_equals_eager() -> None:
    factors = moved_to(random_factors(BlockFactoredTransition, 12, 4, 16, 64, 8, 64), "cuda")
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves_of(factors).items()}

    def step() -> list[Tensor]:
        run = blocked_recursion_by_kernels(with_leaves(factors, leaves))
        gradients = torch.autograd.grad(run.token_log_probs.sum(), tuple(leaves.values()))
        # Detached: whatever autograd keeps of one run would belong to that run's stream in the next.
        return [run.token_log_probs.detach(), *gradients]

    # Before it is captured, work runs on another stream than the default one, which a capture must not touch.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for ours, theirs in zip(captured, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
