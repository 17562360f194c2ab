"""The dense recursion's kernels against the specification: interpreted here, compiled on a GPU (`-m gpu`)."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.ops import recursion as op
from vlhmm.ops.recursion import Factors, dense, product, recursion_by_kernels, reference, tilings
from vlhmm.ops.recursion.launches import awaited
from vlhmm.precision import Precision
from vlhmm.records import convert

FLOATS = ("log_previous", "log_inits", "log_tiles", "log_emission")
METHODS: tuple[tilings.Method, ...] = ("resident", "persistent", "launches", "cublas")
SMALL = tilings.Tiling(16, 16, 16, 4, 2)

# For the value relative to log p(x), for gradients relative to the largest entry: bf16 keeps 8 bits, tf32 11.
VALUE_TOLERANCE: dict[Precision, float] = {"bf16": 3e-4, "tf32": 3e-5, "highest": 1e-6}
GRADIENT_TOLERANCE: dict[Precision, float] = {"bf16": 2e-2, "tf32": 3e-3, "highest": 2e-5}


pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def random_factors(
    seed: int, batch: int, positions: int, states: int, spread: float = 2.0, device: str = "cpu"
) -> Factors:
    """Numbers that float32 holds exactly, in float64. A third of the positions begin anew; lengths are ragged."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return spread * torch.randn(*shape, generator=generator)

    factors = Factors(
        log_previous=normal(batch, states).log_softmax(1),
        log_inits=normal(2, states),
        init_of=torch.randint(-4, 2, (batch, positions), generator=generator).clamp(min=-1),
        log_tiles=normal(1, states, states),
        tile_of=torch.zeros(batch, positions, dtype=torch.int64),
        log_emission=normal(batch, positions, states),
        lengths=torch.randint(1, positions + 1, (batch,), generator=generator),
    )
    return convert(factors, device=device, dtype=torch.float64)


def cotangents_of(factors: Factors, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size, length, states = factors.log_emission.shape
    pair = (torch.randn(size, length, generator=generator), torch.randn(size, states, generator=generator))
    return pair[0].to(factors.log_emission), pair[1].to(factors.log_emission)


def gradients(run: Any, factors: Factors, cotangents: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    leaves = {name: getattr(factors, name).clone().requires_grad_() for name in FLOATS}
    outputs = run(replace(factors, **leaves))
    found = torch.autograd.grad(outputs, tuple(leaves.values()), cotangents, allow_unused=True)
    filled = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves.values(), strict=True)]
    return [output.detach() for output in outputs], filled


def by_reference(factors: Factors) -> tuple[Tensor, Tensor]:
    token_log_probs, _, log_last = reference.recursion(factors)
    return token_log_probs, log_last


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert not ours.isnan().any()
    largest = float(theirs.abs().max()) if theirs.numel() else 0.0
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * max(largest, 1e-6))


def forward(
    factors: Factors,
    precision: Precision,
    keep: bool = True,
    method: tilings.Method | None = None,
    tiling: tilings.Tiling | None = None,
) -> dense.DenseRun:
    prepared = dense.prepare(factors.log_tiles[0], factors.log_inits, precision)
    return dense.forward(prepared, dense.text_of(factors), precision, keep=keep, method=method, tiling=tiling)


def check(factors: Factors, precision: Precision, method: tilings.Method, tiling: tilings.Tiling | None) -> None:
    single = convert(factors, dtype=torch.float32)
    cotangents = cotangents_of(factors)
    (token_log_probs, log_last), expected = gradients(by_reference, factors, cotangents)
    value, gradient = VALUE_TOLERANCE[precision], GRADIENT_TOLERANCE[precision]
    run = forward(single, precision, method=method, tiling=tiling)
    assert not run.underflow.any()
    assert_near(run.token_log_probs.double().sum(1), token_log_probs.sum(1), value)
    assert run.log_prob is not None
    torch.testing.assert_close(run.log_prob, run.token_log_probs.double().sum(1).float(), rtol=2e-7, atol=0)
    assert_near(run.last, log_last.exp(), gradient)
    filtered = reference.recursion(factors)[1].exp()
    assert_near(run.messages[1:].transpose(0, 1) * factors.within()[:, :, None], filtered, gradient)
    short = forward(single, precision, keep=False, method=method, tiling=tiling)
    assert torch.equal(short.token_log_probs, run.token_log_probs)
    assert torch.equal(short.last, run.last)
    token_cotangent, last_cotangent = (one.float() for one in cotangents)
    prepared = dense.prepare(single.log_tiles[0], single.log_inits, precision)
    text = dense.text_of(single)
    ours = dense.backward(prepared, text, run, token_cotangent, last_cotangent, precision, method=method, tiling=tiling)
    for name, theirs in zip(FLOATS, expected, strict=True):
        assert_near(getattr(ours, name), theirs, gradient)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("batch", "positions", "states"), [(3, 5, 19), (1, 1, 5), (17, 2, 33)])
def test_values_and_gradients_equal_the_reference(
    batch: int, positions: int, states: int, method: tilings.Method
) -> None:
    check(random_factors(states, batch, positions, states), "highest", method, SMALL)


def test_parts_of_the_initial_rows_gradient_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PART_POSITIONS", 3)
    check(random_factors(7, 2, 5, 7), "highest", "persistent", SMALL)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "tf32", "highest"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("batch", "positions", "states"), [(200, 64, 512), (7, 65, 301), (1, 1, 5), (1, 9, 1), (40, 20, 1037), (3, 7, 2500)]
)
def test_on_a_gpu_values_and_gradients_equal_the_reference(
    batch: int, positions: int, states: int, method: tilings.Method, precision: Precision
) -> None:
    if method == "resident" and tilings.method_for(batch, states, torch.device("cuda"), precision) != method:
        pytest.skip("the programs cannot hold this tile")
    few = random_factors(states, min(batch, 7), positions, states, device="cuda")
    rows = torch.arange(batch, device="cuda") % few.lengths.shape[0]
    if batch <= few.lengths.shape[0]:
        check(few, precision, method, None)
        return
    # The reference holds a tile for each sequence: a large batch repeats a few of them.
    single = convert(few.sequences(rows), dtype=torch.float32)
    run = forward(single, precision, keep=False, method=method)
    expected = reference.recursion(few)[0].sum(1)[rows]
    assert_near(run.token_log_probs.double().sum(1), expected, VALUE_TOLERANCE[precision])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_awaited_is_no_number_and_lies_where_kernels_expect_it(dtype: torch.dtype) -> None:
    for sizes in ((3, 5, 7, 2), (1, 1, 1, 1), (2, 4, 8, 3)):
        messages, sums = awaited(*sizes, torch.empty(1, 1, dtype=dtype))
        steps, size, states, parts = sizes
        assert messages.dtype == dtype
        assert sums.dtype == torch.float32
        assert messages.shape == (steps, size, states)
        assert sums.shape == (steps, size, parts)
        assert messages.isnan().all()
        assert sums.isnan().all()
        assert (sums.data_ptr() - messages.data_ptr()) % 16 == 0
        messages.zero_()
        assert sums.isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["high", "highest"])
@pytest.mark.parametrize(("precision", "error"), [("bf16", 2.0**-7), ("tf32", 2.0**-11), ("highest", 2.0**-22)])
def test_a_product_keeps_its_precision_whatever_the_process_reads(
    precision: Precision, error: float, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "COPIED_AT_ONCE", 1000)
    generator = torch.Generator("cuda").manual_seed(0)
    left, right = (torch.rand(*shape, generator=generator, device="cuda") for shape in ((65, 333), (333, 47)))
    torch.set_float32_matmul_precision(setting)
    try:
        found = product.product(left, right, precision)
    finally:
        torch.set_float32_matmul_precision("highest")
    expected = left.double() @ right.double()
    assert float(((found.double() - expected) / expected).abs().max()) < error


def test_the_library_multiplies_where_it_can_be_told_the_precision_of_one_product() -> None:
    of = {one: tilings.method_for(200, 2048, torch.device("cpu"), one, in_graph=True) for one in VALUE_TOLERANCE}
    assert of == {
        "bf16": "cublas" if product.PRODUCT_WIDENS else "persistent",
        "tf32": "persistent",
        "highest": "persistent",
    }
    assert tilings.method_for(200, 10_000, torch.device("cpu"), "highest") == "launches"


def test_a_thread_without_cooperative_kernels_takes_none() -> None:
    def methods() -> set[tilings.Method]:
        sizes = itertools.product((1, 200), (4, 128, 512, 2048, 20_000), VALUE_TOLERANCE, (False, True))
        return {
            tilings.method_for(size, states, torch.device("cpu"), precision, in_graph=in_graph)
            for size, states, precision, in_graph in sizes
        }

    assert "persistent" in methods()
    with tilings.no_cooperative_kernels():
        with tilings.no_cooperative_kernels():
            pass
        assert methods() <= {"cublas", "launches"}
        with ThreadPoolExecutor(1) as elsewhere:
            assert "persistent" in elsewhere.submit(methods).result()
    assert "persistent" in methods()


def test_autograd_gives_the_gradient_of_the_reference() -> None:
    factors = random_factors(3, 3, 4, 19)
    cotangents = cotangents_of(factors)
    single = convert(factors, dtype=torch.float32)
    single_cotangents = (cotangents[0].float(), cotangents[1].float())
    outputs, ours = gradients(lambda one: recursion_by_kernels(one, "highest"), single, single_cotangents)
    expected_outputs, expected = gradients(by_reference, factors, cotangents)
    for one, other in zip(outputs + ours, expected_outputs + expected, strict=True):
        assert_near(one, other, 2e-5)


def test_an_impossible_sequence_leaves_the_others_alone() -> None:
    factors = replace(random_factors(1, 3, 5, 6), lengths=torch.tensor([5, 5, 4]))
    log_emission = factors.log_emission.clone()
    log_emission[1, 2] = -torch.inf
    broken = convert(replace(factors, log_emission=log_emission), dtype=torch.float32)
    single = convert(factors, dtype=torch.float32)
    cotangents = (torch.ones(3, 5), torch.zeros(3, 6))

    def run(one: Factors) -> tuple[Tensor, Tensor]:
        return recursion_by_kernels(one, "highest")

    (whole, _), before = gradients(run, single, cotangents)
    (part, _), after = gradients(run, broken, cotangents)
    assert part[1, 2:].isneginf().all()
    torch.testing.assert_close(part[[0, 2]], whole[[0, 2]])
    torch.testing.assert_close(part[1, :2], whole[1, :2])
    torch.testing.assert_close(after[3][[0, 2]], before[3][[0, 2]])
    assert (after[3][1, 2:] == 0).all()
    assert all(one.isfinite().all() for one in after)


def test_an_impossible_past_stays_impossible_over_a_restart() -> None:
    factors = convert(random_factors(2, 1, 3, 4), dtype=torch.float32)
    factors = replace(
        factors,
        log_previous=torch.full_like(factors.log_previous, -torch.inf),
        init_of=torch.tensor([[0, -1, 1]]),
        lengths=torch.tensor([3]),
    )
    assert recursion_by_kernels(factors, "highest")[0].isneginf().all()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_number_is_seen_and_waited_for_by_nobody(method: tilings.Method) -> None:
    factors = convert(random_factors(4, 2, 3, 5), dtype=torch.float32)
    log_tiles, log_previous = factors.log_tiles.clone(), factors.log_previous.clone()
    log_tiles[0, 1, 2] = log_previous[0, 3] = torch.nan
    broken = replace(
        factors,
        log_tiles=log_tiles,
        log_previous=log_previous,
        init_of=torch.full((2, 3), -1),
        lengths=torch.tensor([3, 3]),
    )
    assert forward(broken, "highest", method=method, tiling=SMALL).token_log_probs.isnan().all()


def softmax_factors(seed: int, spread: float) -> Factors:
    """Rows that are distributions, as sharp as an untrained model's with wide features."""
    factors = random_factors(seed, 3, 5, 19, spread)
    return replace(
        factors,
        log_inits=factors.log_inits.log_softmax(1),
        log_tiles=factors.log_tiles.log_softmax(2),
        lengths=torch.tensor([5, 4, 5]),
    )


def test_a_tile_as_sharp_as_exp_of_minus_100_is_no_reason_for_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """With words that are not so sharp as well: what then underflows is less than any state gets at the next step."""
    mild = random_factors(5, 3, 5, 19)
    factors = replace(softmax_factors(5, 22.0), log_emission=mild.log_emission, log_previous=mild.log_previous)
    assert -109 < float(factors.log_tiles.amin() - factors.log_tiles.amax()) < -87
    assert not forward(convert(factors, dtype=torch.float32), "highest", tiling=SMALL).underflow.any()
    assert_equal_to_reference(factors, monkeypatch)


def test_a_certain_token_has_exactly_the_log_probability_zero() -> None:
    factors = convert(random_factors(2, 2, 4, 3), dtype=torch.float32)
    cycle = torch.eye(3).roll(1, 1).log()
    certain = replace(
        factors,
        log_inits=torch.tensor([[0.0, -torch.inf, -torch.inf]]),
        init_of=torch.tensor([[0, -1, -1, -1]] * 2),
        log_tiles=cycle[None],
        log_emission=torch.zeros(2, 4, 3),
    )
    assert (recursion_by_kernels(certain, "highest")[0] == 0).all()


@pytest.fixture
def fading() -> Factors:
    """Tiles so sharp that some of their entries, and some messages, are 0 in float32, though none of them matters."""
    factors = softmax_factors(7, 30.0)
    assert forward(convert(factors, dtype=torch.float32), "highest", tiling=SMALL).underflow.all()
    return factors


def assert_equal_to_reference(factors: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the help of the reference."""
    of_tokens = cotangents_of(factors)[0]
    of_last = torch.zeros_like(factors.log_previous)
    (value, _), expected = gradients(by_reference, factors, (of_tokens, of_last))
    monkeypatch.setattr(reference, "recursion", lambda factors: pytest.fail("done in log space"))
    single = convert(factors, dtype=torch.float32)
    ours, found = gradients(
        lambda one: recursion_by_kernels(one, "highest"), single, (of_tokens.float(), of_last.float())
    )
    assert_near(ours[0], value, 2e-5)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, 2e-5)


def test_what_fades_in_float32_is_done_again_in_float64(fading: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal_to_reference(fading, monkeypatch)


def test_a_graph_takes_what_fades_as_it_is(fading: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_in_capture", lambda device: True)
    monkeypatch.setattr(op, "_again", lambda factors: pytest.fail("a graph cannot ask which sequences underflow"))
    assert_equal_to_reference(fading, monkeypatch)


def test_in_a_graph_a_sum_that_is_lost_has_no_gradient_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factors = replace(
        random_factors(1, 3, 4, 6), init_of=torch.tensor([[0, -1, -1, -1]] * 3), lengths=torch.tensor([4] * 3)
    )
    log_tiles = factors.log_tiles.clone()
    log_emission = factors.log_emission.clone()
    # The second sequence must enter a state that none can enter but by exp(-150).
    log_tiles[0, :, 2] = -150.0
    log_emission[1, 2] = torch.where(torch.arange(6) == 2, 0.0, -torch.inf)
    single = convert(replace(factors, log_tiles=log_tiles, log_emission=log_emission), dtype=torch.float32)
    cotangents = (torch.ones(3, 4), torch.zeros(3, 6))

    def run(one: Factors) -> tuple[Tensor, Tensor]:
        return recursion_by_kernels(one, "highest")

    monkeypatch.setattr(op, "_in_capture", lambda device: True)
    (value, _), found = gradients(run, single, cotangents)
    (others, _), expected = gradients(run, single.sequences(torch.tensor([0, 2])), cotangents_for(single, [0, 2]))
    torch.testing.assert_close(value[[0, 2]], others)
    assert (found[3][1] == 0).all()
    torch.testing.assert_close(found[3][[0, 2]], expected[3])
    torch.testing.assert_close(found[2], expected[2])


def comes_back() -> Factors:
    """In sequence 1 state 1 fades to exp(-102), then explains each word better by exp(12), until it is the likely one."""
    log_tile = torch.full((5, 5), -300.0).fill_diagonal_(0.0)
    log_tile[0, 1] = -90.0
    log_emission = torch.full((2, 16, 5), -5.0)
    log_emission[1, :2, 1] = log_emission[1, 2:, 0] = -17.0
    return Factors(
        log_previous=torch.zeros(2, 5),
        log_inits=torch.tensor([[0.0, -300.0, -300.0, -300.0, -300.0]]),
        init_of=torch.tensor([0] + [-1] * 15).repeat(2, 1),
        log_tiles=log_tile[None],
        tile_of=torch.zeros(2, 16, dtype=torch.int64),
        log_emission=log_emission,
        lengths=torch.tensor([16, 16]),
    )


def all_but_vanishes() -> Factors:
    """In sequence 1 a step's sum is so small that float32 does not hold its inverse."""
    log_tile = torch.full((5, 5), -300.0).fill_diagonal_(0.0)
    log_tile[0, 1] = -68.0
    factors = comes_back()
    log_emission = torch.full_like(factors.log_emission, -5.0)
    log_emission[1, 1] = torch.tensor([-300.0, -68.0, 0.0, -300.0, -300.0])
    return replace(factors, log_tiles=log_tile[None], log_emission=log_emission)


# What is left out is infinite where it is made: the interpreter says so.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factors", [comes_back(), all_but_vanishes()], ids=["comes back", "all but vanishes"])
def test_in_a_graph_what_float32_cannot_hold_makes_no_gradient_infinite_and_leaves_the_others_alone(
    factors: Factors, method: tilings.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "_in_capture", lambda device: True)
    monkeypatch.setattr(dense, "method_for", lambda *_: method)

    def run(one: Factors) -> tuple[Tensor, Tensor]:
        return recursion_by_kernels(one, "highest")

    (value, last), found = gradients(run, factors, cotangents_for(factors, [0, 1]))
    alone = gradients(run, factors.sequences(torch.tensor([0])), cotangents_for(factors, [0]))[1]
    assert value.isfinite().all()
    torch.testing.assert_close(last.exp().sum(1), torch.ones(2))
    assert all(one.isfinite().all() for one in found)
    torch.testing.assert_close(found[3][:1], alone[3])
    # Whoever is left out, no position has more than one state's worth.
    assert (found[3].sum(2) <= 1 + 1e-5).all()


def cotangents_for(factors: Factors, rows: list[int]) -> tuple[Tensor, Tensor]:
    _, length, states = factors.log_emission.shape
    return torch.ones(len(rows), length), torch.zeros(len(rows), states)


def test_a_step_beyond_the_range_of_the_type_is_done_in_log_space() -> None:
    # Each step's only way out of the likely state costs exp(-400): beyond float32 in one step.
    far = -400.0
    factors = Factors(
        log_previous=torch.zeros(1, 2),
        log_inits=torch.tensor([[0.0, -torch.inf]]),
        init_of=torch.tensor([[0, -1, -1]]),
        log_tiles=torch.tensor([[[0.0, far], [-torch.inf, 0.0]]]),
        tile_of=torch.zeros(1, 3, dtype=torch.int64),
        log_emission=torch.tensor([[[0.0, 0.0], [0.0, far], [-torch.inf, 0.0]]]),
        lengths=torch.tensor([3]),
    )
    run = forward(factors, "highest", tiling=SMALL)
    assert run.underflow.all()
    # Two paths: 0 -> 0 -> 1 costs far, 0 -> 1 -> 1 costs 2 far.
    outputs, gradient = gradients(
        lambda one: recursion_by_kernels(one, "highest"), factors, (torch.ones(1, 3), torch.zeros(1, 2))
    )
    assert float(outputs[0].sum()) == pytest.approx(far, rel=1e-6)
    assert float(gradient[2][0, 0, 1]) == pytest.approx(1.0)
    assert all(one.isfinite().all() for one in gradient)
