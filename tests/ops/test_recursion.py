"""The recursion against its specification: values and every gradient, at odd sizes, with ragged lengths and restarts."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlhmm.ops.max_product import max_product, scores, trace
from vlhmm.ops.max_product import reference as max_reference
from vlhmm.ops.recursion import Factors, filtered, moves, recursion, reference, scaled
from vlhmm.ops.recursion.moves import MIN_POSITIONS, MIN_STATES
from vlhmm.records import convert

FLOATS = ("log_previous", "log_inits", "log_tiles", "log_emission")


def random_factors(
    seed: int, batch: int = 3, positions: int = 5, states: int = 3, tiles: int = 4, spread: float = 2.0
) -> Factors:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    return Factors(
        log_previous=normal(batch, states).log_softmax(1),
        log_inits=normal(2, states),
        # A third of the positions begin anew.
        init_of=integers(-4, 2, batch, positions).clamp(min=-1),
        log_tiles=normal(tiles, states, states),
        tile_of=integers(0, tiles, batch, positions),
        log_emission=normal(batch, positions, states),
        lengths=integers(1, positions + 1, batch),
    )


def gradients(run: object, factors: Factors, cotangents: tuple[Tensor, Tensor]) -> list[Tensor]:
    leaves = {name: getattr(factors, name).clone().requires_grad_() for name in FLOATS}
    outputs = run(replace(factors, **leaves))  # type: ignore[operator]
    found = torch.autograd.grad((outputs[0], outputs[-1]), tuple(leaves.values()), cotangents, allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves.values(), strict=True)]


@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 4),
    positions=st.integers(1, 9),
    states=st.integers(1, 6),
    tiles=st.integers(1, 7),
)
def test_values_and_gradients_equal_the_reference(
    seed: int, batch: int, positions: int, states: int, tiles: int
) -> None:
    factors = random_factors(seed, batch, positions, states, tiles)
    expected = reference.recursion(factors)
    for ours, theirs in zip(filtered(factors), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(recursion(factors), (expected[0], expected[2]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    generator = torch.Generator().manual_seed(seed)
    cotangents = (
        torch.randn(batch, positions, generator=generator, dtype=torch.float64),
        torch.randn(batch, states, generator=generator, dtype=torch.float64),
    )
    for ours, theirs in zip(
        gradients(recursion, factors, cotangents), gradients(reference.recursion, factors, cotangents), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("states", [MIN_STATES, MIN_STATES + 3])
@pytest.mark.parametrize(("batch", "positions"), [(1, MIN_POSITIONS), (3, MIN_POSITIONS + 3)])
@pytest.mark.parametrize("packed", [True, False])
def test_one_packed_tile_equals_the_reference(
    packed: bool, batch: int, positions: int, states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, by the product that is packed where the library can, and by the one that is used elsewhere."""
    if packed and not moves._library_packs():
        pytest.skip("this build of PyTorch packs nothing")
    monkeypatch.setattr(moves, "_library_packs", lambda: packed)
    exact = random_factors(states + batch, batch, positions, states, tiles=1, spread=0.5)
    factors = convert(exact, dtype=torch.float32)
    assert moves.packs(factors) == packed
    expected = reference.recursion(exact)
    for ours, theirs in zip(filtered(factors), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    generator = torch.Generator().manual_seed(0)
    cotangents = torch.randn(batch, positions, generator=generator), torch.randn(batch, states, generator=generator)
    exact_cotangents = cotangents[0].double(), cotangents[1].double()
    for ours, theirs in zip(
        gradients(recursion, factors, cotangents),
        gradients(reference.recursion, exact, exact_cotangents),
        strict=True,
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_a_library_that_refuses_to_pack_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Tensor:
        raise RuntimeError("no such layout")

    moves._library_packs.cache_clear()
    monkeypatch.setattr(moves, "_packed_product", refused)
    try:
        assert not moves.packs(convert(random_factors(0, 1, MIN_POSITIONS, MIN_STATES, 1), dtype=torch.float32))
    finally:
        moves._library_packs.cache_clear()


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_passes_gradcheck(seed: int) -> None:
    factors = random_factors(seed, batch=2, positions=3, states=2, tiles=3)
    leaves = [getattr(factors, name).clone().requires_grad_() for name in FLOATS]

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        return recursion(replace(factors, **dict(zip(FLOATS, values, strict=True))))

    assert torch.autograd.gradcheck(run, leaves, fast_mode=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_beyond_the_range_of_the_type_is_done_in_log_space(dtype: torch.dtype) -> None:
    # Each step's only way out of the likely state costs exp(-400): beyond float32 in one step, beyond float64 in two.
    far = -400.0
    log_tiles = torch.tensor([[[0.0, far], [-torch.inf, 0.0]]], dtype=dtype)
    log_emission = torch.tensor([[[0.0, 0.0], [0.0, far], [-torch.inf, 0.0]]], dtype=dtype)
    factors = Factors(
        log_previous=torch.zeros(1, 2, dtype=dtype),
        log_inits=torch.tensor([[0.0, -torch.inf]], dtype=dtype),
        init_of=torch.tensor([[0, -1, -1]]),
        log_tiles=log_tiles,
        tile_of=torch.zeros(1, 3, dtype=torch.int64),
        log_emission=log_emission,
        lengths=torch.tensor([3]),
    )
    # Two paths: 0 -> 0 -> 1 costs far, 0 -> 1 -> 1 costs 2 far.
    token_log_probs, _ = recursion(factors)
    assert float(token_log_probs.sum()) == pytest.approx(far, rel=1e-6)
    gradient = gradients(recursion, factors, (torch.ones(1, 3, dtype=dtype), torch.zeros(1, 2, dtype=dtype)))
    assert float(gradient[2][0, 0, 1]) == pytest.approx(1.0)
    assert all(bool(one.isfinite().all()) for one in gradient)


@pytest.mark.parametrize("seed", range(3))
def test_of_several_tiles_what_fades_in_float32_equals_the_reference(seed: int) -> None:
    factors = convert(random_factors(seed, batch=4, positions=6, spread=60.0), dtype=torch.float32)
    underflow = scaled.forward(factors, scaled.scale(factors)).underflow
    assert underflow.any()
    exact = convert(factors, dtype=torch.float64)
    (token_log_probs, log_filtered, _), expected = filtered(factors), reference.recursion(exact)
    torch.testing.assert_close(token_log_probs.double(), expected[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(log_filtered.double().exp(), expected[1].exp(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_filtered[underflow].double(), expected[1][underflow], rtol=1e-5, atol=1e-4)
    cotangents = (torch.ones(4, 6), torch.zeros(4, 3))
    for ours, theirs in zip(
        gradients(recursion, factors, cotangents),
        gradients(reference.recursion, exact, (cotangents[0].double(), cotangents[1].double())),
        strict=True,
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "way", "gain"), [(torch.float32, 95.0, 12.0), (torch.float64, 720.0, 90.0)])
def test_a_state_that_all_but_fades_and_comes_back_has_the_gradient_of_the_reference(
    dtype: torch.dtype, way: float, gain: float
) -> None:
    # None of the tile is 0 in this type, but its inverse, by how much state 1 explains the later words better, is beyond it.
    log_tiles = torch.full((1, 2, 2), -way, dtype=torch.float64)
    log_tiles[0].fill_diagonal_(0.0)
    log_emission = torch.zeros(2, 16, 2, dtype=torch.float64)
    log_emission[1, :2, 1] = log_emission[1, 2:, 0] = -gain
    exact = Factors(
        log_previous=torch.zeros(2, 2, dtype=torch.float64),
        log_inits=torch.tensor([[0.0, -way]], dtype=torch.float64),
        init_of=torch.tensor([0] + [-1] * 15).expand(2, 16),
        log_tiles=log_tiles,
        tile_of=torch.zeros(2, 16, dtype=torch.int64),
        log_emission=log_emission,
        lengths=torch.tensor([16, 16]),
    )
    factors = convert(exact, dtype=dtype)
    run = scaled.forward(factors, scaled.scale(factors))
    assert run.alpha.amin() < torch.finfo(dtype).tiny
    cotangents = (torch.ones(2, 16, dtype=dtype), torch.zeros(2, 2, dtype=dtype))
    for ours, theirs in zip(
        gradients(recursion, factors, cotangents),
        gradients(reference.recursion, exact, (cotangents[0].double(), cotangents[1].double())),
        strict=True,
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_an_impossible_sequence_leaves_the_others_alone() -> None:
    factors = random_factors(1, batch=3, positions=6, states=3)
    factors = replace(factors, lengths=torch.tensor([6, 6, 6]))
    log_emission = factors.log_emission.clone()
    log_emission[1, 2] = -torch.inf
    broken = replace(factors, log_emission=log_emission)
    cotangents = (torch.ones(3, 6, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64))
    whole, part = recursion(factors)[0], recursion(broken)[0]
    assert bool(part[1, 2:].isneginf().all())
    torch.testing.assert_close(part[[0, 2]], whole[[0, 2]])
    torch.testing.assert_close(part[1, :2], whole[1, :2])
    before, after = gradients(recursion, factors, cotangents)[3], gradients(recursion, broken, cotangents)[3]
    torch.testing.assert_close(after[[0, 2]], before[[0, 2]])
    assert bool((after[1, 2:] == 0).all())
    assert bool(after.isfinite().all())


def test_an_impossible_past_stays_impossible_over_a_restart() -> None:
    factors = random_factors(2, batch=1, positions=3)
    factors = replace(
        factors,
        log_previous=torch.full_like(factors.log_previous, -torch.inf),
        init_of=torch.tensor([[0, -1, 1]]),
        lengths=torch.tensor([3]),
    )
    assert bool(recursion(factors)[0].isneginf().all())
    assert bool(filtered(factors)[1].isneginf().all())


@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 4),
    positions=st.integers(1, 8),
    states=st.integers(1, 5),
)
def test_max_product_equals_its_reference(seed: int, batch: int, positions: int, states: int) -> None:
    factors = random_factors(seed, batch, positions, states)
    gains, log_best, way = max_product(factors, keep_backtrace=True)
    expected_gains, expected_best, pointers = max_reference.max_product(factors, back_pointers=True)
    torch.testing.assert_close(gains, expected_gains)
    torch.testing.assert_close(log_best, expected_best)
    assert way is not None
    for slot in range(states):
        last_slot = torch.full((batch,), slot)
        path, before = trace(factors, way, last_slot)
        expected_path, expected_before = max_reference.trace(factors, pointers, last_slot)
        assert torch.equal(path, expected_path)
        assert torch.equal(before, expected_before)
    without_way = max_product(factors, keep_backtrace=False)
    assert torch.equal(without_way[0], gains)
    assert torch.equal(without_way[1], log_best)
    assert without_way[2] is None


@pytest.mark.parametrize("tiles", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_path_of_what_is_impossible(seed: int, tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impossible past, a word that no state emits, and restarts behind them; the tile goes by in several pieces."""
    monkeypatch.setattr(scores, "STEP_BYTES", 100)
    factors = random_factors(seed, batch=4, positions=8, states=5, tiles=tiles)
    factors.log_previous[0] = -torch.inf
    factors.log_emission[1, 2] = -torch.inf
    factors.log_tiles[0, 1] = -torch.inf
    gains, log_best, way = max_product(factors, keep_backtrace=True)
    expected_gains, expected_best, pointers = max_reference.max_product(factors, back_pointers=True)
    torch.testing.assert_close(gains, expected_gains)
    torch.testing.assert_close(log_best, expected_best)
    assert way is not None
    possible = gains.isfinite().all(1)
    last_slot = log_best.argmax(1)
    path, _ = trace(factors, way, last_slot)
    assert torch.equal(path[possible], max_reference.trace(factors, pointers, last_slot)[0][possible])


def test_of_equal_predecessors_the_first_one_counts() -> None:
    states = 37
    factors = Factors(
        log_previous=torch.zeros(1, states),
        log_inits=torch.zeros(1, states),
        init_of=torch.tensor([[0, -1, -1]]),
        log_tiles=torch.zeros(1, states, states),
        tile_of=torch.zeros(1, 3, dtype=torch.int64),
        log_emission=torch.zeros(1, 3, states),
        lengths=torch.tensor([3]),
    )
    way = max_product(factors, keep_backtrace=True)[2]
    assert way is not None
    path, before = trace(factors, way, torch.tensor([states - 1]))
    assert path.tolist() == [[0, 0, states - 1]]
    assert before.tolist() == [0]


def test_a_uniform_tile_spreads_evenly() -> None:
    states = 4
    factors = Factors(
        log_previous=torch.zeros(1, states),
        log_inits=torch.full((1, states), -math.log(states)),
        init_of=torch.tensor([[0, -1, -1]]),
        log_tiles=torch.full((1, states, states), -math.log(states)),
        tile_of=torch.zeros(1, 3, dtype=torch.int64),
        log_emission=torch.full((1, 3, states), math.log(0.5)),
        lengths=torch.tensor([3]),
    )
    torch.testing.assert_close(recursion(factors)[0], torch.full((1, 3), math.log(0.5)))
