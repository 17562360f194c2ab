"""The kernels of dense max-product against the specification: interpreted here, compiled on a GPU (`-m gpu`)."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.ops.max_product import dense, reference
from vlhmm.ops.recursion import Factors
from vlhmm.records import convert

SMALL = dense.Tiling(4, 4, 8, 2, 4)
TALL = dense.Tiling(8, 4, 8, 2, 4)


pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def random_factors(seed: int, batch: int, positions: int, states: int, device: str = "cpu") -> Factors:
    """Small whole numbers: sums are exact in any type, and many predecessors are equally good."""
    generator = torch.Generator().manual_seed(seed)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-9, 1, shape, generator=generator).double()

    factors = Factors(
        log_previous=whole(batch, states),
        log_inits=whole(2, states),
        init_of=torch.randint(-4, 2, (batch, positions), generator=generator).clamp(min=-1),
        log_tiles=whole(1, states, states),
        tile_of=torch.zeros(batch, positions, dtype=torch.int64),
        log_emission=whole(batch, positions, states),
        lengths=torch.randint(1, positions + 1, (batch,), generator=generator),
    )
    return convert(factors, device=device)


def check(factors: Factors, persistent: bool | None, tiling: dense.Tiling | None) -> None:
    single = convert(factors, dtype=torch.float32)
    gains, log_best, way = dense.max_product(single, keep_backtrace=True, persistent=persistent, tiling=tiling)
    expected_gains, expected_best, pointers = reference.max_product(factors, back_pointers=True)
    assert torch.equal(gains.double(), expected_gains)
    assert torch.equal(log_best.double(), expected_best)
    assert way is not None
    states = log_best.shape[1]
    for slot in {0, states // 2, states - 1}:
        last_slot = torch.full_like(factors.lengths, slot)
        path, before = dense.trace(single.init_of, single.lengths, way, last_slot)
        expected_path, expected_before = reference.trace(factors, pointers, last_slot)
        assert torch.equal(path, expected_path)
        assert torch.equal(before, expected_before)
    short = dense.max_product(single, keep_backtrace=False, persistent=persistent, tiling=tiling)
    assert torch.equal(short[0], gains)
    assert torch.equal(short[1], log_best)


@pytest.mark.parametrize(
    ("batch", "positions", "states", "tiling"),
    [(3, 5, 19, SMALL), (1, 1, 5, SMALL), (9, 2, 33, SMALL), (2, 3, 1, SMALL), (9, 2, 19, TALL)],
)
def test_scores_and_paths_equal_the_reference(batch: int, positions: int, states: int, tiling: dense.Tiling) -> None:
    check(random_factors(states, batch, positions, states), None, tiling)


@pytest.mark.gpu
@pytest.mark.parametrize("persistent", [None, False])
@pytest.mark.parametrize(
    ("batch", "positions", "states"), [(40, 64, 512), (7, 65, 301), (1, 1, 5), (1, 9, 1), (40, 9, 1037), (3, 7, 2500)]
)
def test_on_a_gpu_scores_and_paths_equal_the_reference(
    batch: int, positions: int, states: int, persistent: bool | None
) -> None:
    check(random_factors(states, batch, positions, states, device="cuda"), persistent, None)


def test_an_impossible_sequence_stays_impossible_over_a_restart() -> None:
    factors = replace(random_factors(1, 2, 4, 5), lengths=torch.tensor([4, 4]))
    log_emission = factors.log_emission.clone()
    log_emission[1, 1] = -torch.inf
    single = convert(
        replace(factors, log_emission=log_emission, init_of=torch.tensor([[0, -1, -1, 1]] * 2)), dtype=torch.float32
    )
    gains, log_best, _ = dense.max_product(single, keep_backtrace=False, tiling=SMALL)
    assert gains[1, 1:].isneginf().all()
    assert log_best[1].isneginf().all()
    assert gains[0].isfinite().all()
