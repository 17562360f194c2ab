"""The blocked recursion against its specification: the CPU path, and the kernels, interpreted here or on a GPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from blocked_factors import (
    DEVICE,
    KINDS,
    assert_close,
    check_kernels,
    cotangents_for,
    leaves_of,
    moved_to,
    random_factors,
    results,
    with_leaves,
)
from torch import Tensor

from vlhmm.ops.blocked_recursion import (
    BlockedFactors,
    Precision,
    blocked_recursion,
    blocked_recursion_by_kernels,
    reference,
)
from vlhmm.ops.blocked_recursion.tilings import tiling_for
from vlhmm.transitions import BlockFactoredTransition, BlockSoftmaxTransition, SoftmaxTransition, TableTransition

pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


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
    check_kernels(overlapping, "highest", tiling=replace(tiling_for(states, "highest"), sum_programs=2))


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
    check_kernels(factors, "highest", tiling=replace(tiling_for(19, "highest"), **sizes, sum_programs=5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_that_is_filled_in_part_equals_the_reference(kind: type) -> None:
    """35 states fill 48 of 64 rows and columns: pieces of 16 leave some out, the second piece of 32 is filled in part."""
    factors = random_factors(kind, 21, batch=2, positions=3, states=35, groups=3, width=6)
    for size in (16, 32):
        sizes = dict.fromkeys(("tile_rows", "forward_rows", "backward_columns", "sum_rows", "sum_inner"), size)
        check_kernels(factors, "highest", tiling=replace(tiling_for(35, "highest"), **sizes, sum_programs=5))


@pytest.mark.parametrize("kind", [BlockSoftmaxTransition, SoftmaxTransition])
@pytest.mark.parametrize("width", [18, 34])
def test_two_products_with_one_tile_equal_the_reference(kind: type, width: int) -> None:
    """Of 16 features each: 18 and 34 leave a part of the second or all of it out."""
    factors = random_factors(kind, 4, batch=2, positions=3, states=19, groups=3, width=width)
    sizes = {"sum_rows": 16, "sum_inner": 16, "sum_width": 16, "sum_two": True}
    check_kernels(factors, "highest", tiling=replace(tiling_for(19, "highest"), **sizes, sum_programs=5))


@pytest.mark.parametrize("kind", KINDS)
def test_one_group_at_every_position_is_summed_over_all(kind: type) -> None:
    # A second block, which nobody enters: over one alone the softmax has no gradient.
    factors = random_factors(kind, 5, groups=2, entering=0)
    only = torch.zeros_like(factors.source_group)
    factors = replace(factors, source_group=only, target_group=only)
    check_kernels(factors, "highest", tiling=replace(tiling_for(5, "highest"), sum_programs=2))


def test_tiles_far_below_one_do_not_underflow() -> None:
    factors = random_factors(SoftmaxTransition, 6)
    far = replace(factors.transition, row_term=factors.transition.row_term + 200)
    far_factors = replace(factors, transition=far, log_emission=factors.log_emission - 300)
    check_kernels(far_factors, "highest")
    assert not blocked_recursion_by_kernels(moved_to(far_factors, DEVICE), "highest").underflow.any()


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
    transition = replace(transition, row_term=(transition.out @ transition.into.T).logsumexp(1))
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
    factors.transition.out[:, 2::5] = -torch.inf
    factors.transition.out[3, 5:10] = -torch.inf
    factors = replace(factors, init_of=torch.full_like(factors.init_of, -1))
    cotangents = cotangents_for(factors)
    cotangents[1][:, 2] = 0
    found = results(lambda given: blocked_recursion_by_kernels(given, "highest"), moved_to(factors, DEVICE), cotangents)
    expected = results(reference.blocked_recursion, moved_to(factors, DEVICE, torch.float64), cotangents)
    assert_close(found, expected, "highest")
    assert (found["out"][:, 2::5] == 0).all()
    assert (found["out"][3, 5:10] == 0).all()


def test_a_sequence_near_the_smallest_number_is_suspect() -> None:
    factors = random_factors(BlockFactoredTransition, 10, states=2, positions=3)
    lasting = torch.full((3, 3), -1)
    # The message is all but in state 0, of which the next word is all but impossible; the transition has zeros.
    barred = factors.transition.row_term.index_fill(0, torch.arange(1, 10, 2), -torch.inf)
    factors.log_emission[1] = torch.tensor([[0.0, -80.0], [0.0, -80.0], [0.0, -80.0]])
    transition = replace(factors.transition, row_term=barred)
    factors = replace(factors, init_of=lasting, transition=transition, lengths=torch.full((3,), 3))
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE), "highest")
    assert run.underflow.tolist() == [False, True, False]


def test_a_total_near_the_smallest_number_is_suspect_and_right() -> None:
    factors = random_factors(BlockFactoredTransition, 13, states=2, positions=1)
    # Sequence 1 is surely in state 0, which hardly ever moves to that block, while state 1 does.
    factors.log_previous[1] = torch.tensor([0.0, -torch.inf])
    factors.transition.row_term[0::2] = -80
    factors.transition.row_term[1::2] = 0
    factors = replace(factors, init_of=torch.full_like(factors.init_of, -1))
    run = blocked_recursion_by_kernels(moved_to(factors, DEVICE), "highest")
    assert run.underflow.tolist() == [False, True, False]
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
        transition=TableTransition(log_prob).operands(),
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
        tiling_for(1025, "bf16")


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


def test_features_without_a_gradient_leave_the_others_theirs() -> None:
    factors = moved_to(random_factors(BlockSoftmaxTransition, 22), DEVICE)
    leaves = leaves_of(factors)
    asked = [leaves["into"].requires_grad_(), leaves["block_weight"].requires_grad_()]
    found, expected = (
        torch.autograd.grad(run(with_leaves(factors, leaves)).sum(), asked)
        for run in (
            lambda given: blocked_recursion_by_kernels(given, "highest").token_log_probs,
            lambda given: reference.blocked_recursion(given)[0],
        )
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
