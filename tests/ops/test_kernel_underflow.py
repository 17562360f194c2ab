"""What the kernels of the recursion tell of numbers that are too small for float32: everything that changes an answer.

A state is lost at one position, and then explains every word so much better that it is the likely one: what is left of the others
is a wrong answer that looks like any other.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from blocked_factors import moved_to
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.blocked_recursion import BlockedFactors, blocked_recursion_by_kernels
from vlhmm.ops.blocked_recursion import reference as blocked_reference
from vlhmm.ops.recursion import Factors, dense, recursion_by_kernels, reference, tilings
from vlhmm.records import convert
from vlhmm.transitions import SoftmaxTransition, TableTransition

pytestmark = [pytest.mark.usefixtures("unwritten_is_nan"), pytest.mark.parametrize("device", DEVICES)]

SMALL = tilings.Tiling(16, 16, 16, 4, 2)
METHODS: tuple[tilings.Method, ...] = ("resident", "persistent", "launches", "cublas")
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
    factors: Factors, lost: list[bool], method: tilings.Method, device: str, monkeypatch: pytest.MonkeyPatch
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


def test_a_dense_kernel_tells_of_a_state_that_is_lost_at_the_end(device: str) -> None:
    """What comes back to it in the next window is not known: the tile has zeros."""
    log_emission = torch.zeros(2, POSITIONS, STATES)
    log_emission[1, -1, 1] = -250.0
    moved = convert(factors_of(moves(), log_emission, start=-1.0), device=device, dtype=torch.float32)
    prepared = dense.prepare(moved.log_tiles[0], moved.log_inits, "highest")
    run = dense.forward(prepared, dense.text_of(moved), "highest", keep=False, method="persistent", tiling=SMALL)
    assert run.underflow.tolist() == [False, True]


def in_one_block(factors: Factors) -> BlockedFactors:
    """The same of a table, all of whose states are of one block."""
    only = torch.zeros_like(factors.tile_of)
    return BlockedFactors(
        log_previous=factors.log_previous,
        log_inits=factors.log_inits,
        init_of=factors.init_of,
        transition=TableTransition(factors.log_tiles[0]).operands(),
        source_group=only,
        target_group=only,
        log_emission=factors.log_emission,
        lengths=factors.lengths,
    )


@pytest.mark.parametrize("factors", [factors for factors, _ in LOST.values()], ids=LOST)
def test_the_blocked_kernels_tell_of_a_state_that_is_lost(factors: Factors, device: str) -> None:
    blocked = in_one_block(factors)
    run = blocked_recursion_by_kernels(moved_to(blocked, device), "highest")
    expected, _ = blocked_reference.blocked_recursion(moved_to(blocked, device, torch.float64))
    wrong = (run.token_log_probs.double() - expected).abs().amax(1) > 1e-3
    assert wrong.tolist() == [False, True]
    assert run.underflow[1]


def test_the_blocked_kernels_tell_of_features_that_lose_a_state(device: str) -> None:
    """State 1 is moved to by exp(-220) alone; beneath it all that happens is as likely as can be."""
    given, _ = LOST["by a move"]
    out = torch.eye(STATES)
    logits = torch.where(given.log_tiles[0] == NEVER, -300.0, given.log_tiles[0])
    transition = SoftmaxTransition(out, logits.T.contiguous(), logits.logsumexp(1))
    for factors, lost in [
        (replace(in_one_block(given), transition=transition.operands()), True),
        (
            replace(in_one_block(given), transition=transition.operands(), init_of=torch.zeros(2, POSITIONS).long()),
            False,
        ),
    ]:
        run = blocked_recursion_by_kernels(moved_to(factors, device), "highest")
        expected, _ = blocked_reference.blocked_recursion(moved_to(factors, device, torch.float64))
        wrong = (run.token_log_probs.double() - expected).abs().amax(1) > 1e-3
        assert bool(wrong[1]) == lost
        assert bool(run.underflow[1]) == lost
