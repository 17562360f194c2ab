"""What the kernels of the recursion tell of numbers that are too small for float32: everything that changes an answer.

A state is lost at one position, and then explains every word so much better that it is the likely one: what is left of the others
is a wrong answer that looks like any other.
"""

from __future__ import annotations

import math

import pytest
import torch
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.recursion import Factors, cutting, dense, recursion_by_kernels, reference
from vlhmm.records import convert

pytestmark = [pytest.mark.usefixtures("unwritten_is_nan"), pytest.mark.parametrize("device", DEVICES)]

SMALL = cutting.Tiling(16, 16, 16, 4, 2)
METHODS: tuple[cutting.Method, ...] = ("resident", "persistent", "launches", "library")
POSITIONS, STATES = 8, 5
NEVER = -math.inf


def moves(*given: tuple[int, int, float]) -> Tensor:
    """log A of states that stay where they are, but for the moves that are given."""
    log_tile = torch.full((STATES, STATES), NEVER).fill_diagonal_(0.0)
    for source, target, log_prob in given:
        log_tile[source, target] = log_prob
    return log_tile


def words(favoured: int, *, begin: int = 1, first: float = 0.0) -> Tensor:
    """In sequence 1 the words from position `begin` on are explained better by exp(60) by one state, which explains the first one worse by exp(first)."""
    log_emission = torch.zeros(2, POSITIONS, STATES)
    log_emission[1, begin:] = -60.0
    log_emission[1, begin:, favoured] = 0.0
    log_emission[1, 0, favoured] = first
    return log_emission


def factors_of(log_tile: Tensor, log_emission: Tensor, start: float = NEVER) -> Factors:
    """Of one tile; `start`: the log probability to begin in state 1 instead of 0."""
    return Factors(
        log_previous=torch.zeros(2, STATES),
        log_inits=torch.tensor([[0.0, start, NEVER, NEVER, NEVER]]),
        init_of=torch.tensor([0] + [-1] * (POSITIONS - 1)).repeat(2, 1),
        log_tiles=log_tile[None],
        tile_of=torch.zeros(2, POSITIONS, dtype=torch.int64),
        log_emission=log_emission,
        lengths=torch.tensor([POSITIONS, POSITIONS]),
    )


LOST = {
    # Only the words of sequence 1 are so: nothing is wrong with the other.
    "by a word": (factors_of(moves(), words(1, first=-250.0), start=-10.0), [False, True]),
    "at the start": (factors_of(moves(), words(1), start=-250.0), [True, True]),
    "by a move": (factors_of(moves((0, 1, -220.0)), words(1)), [True, True]),
    # Message and move are numbers of float32, their product is not.
    "on the way": (factors_of(moves((0, 1, -60.0), (1, 2, -105.0)), words(2, begin=2)), [True, True]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("factors", "lost"), LOST.values(), ids=LOST)
def test_a_dense_kernel_tells_of_a_state_that_is_lost(
    factors: Factors, lost: list[bool], method: cutting.Method, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = convert(factors, device=device, dtype=torch.float32)
    prepared = dense.prepare(moved.log_tiles[0], moved.log_inits, "highest")
    run = dense.forward(prepared, dense.text_of(moved), "highest", keep=True, method=method, tiling=SMALL)
    assert run.underflow.tolist() == lost
    # No step's sum is so small: that alone would not show it.
    assert not run.total_underflow.any()
    monkeypatch.setattr(dense, "method_for", lambda *_: method)
    expected = reference.recursion(convert(factors, device=device, dtype=torch.float64))[0]
    assert (run.token_log_probs.double() - expected)[1].abs().max() > 1
    torch.testing.assert_close(recursion_by_kernels(moved, "highest")[0].double(), expected, rtol=1e-5, atol=1e-4)
