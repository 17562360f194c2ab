"""What is kept of a table: made once, made anew when the table changes, gone when the table goes."""

import gc

import torch
from torch import Tensor

from vlhmm.hmm import HMM
from vlhmm.ops.recursion import kept, moves
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

STATES, WORDS = moves.MIN_STATES, 5


def double_of(table: Tensor, made: list[int]) -> Tensor:
    def make() -> Tensor:
        made.append(1)
        return 2 * table

    return kept.kept(table, "double", make)


def test_the_same_table_is_asked_once() -> None:
    table, made = torch.arange(6.0).view(2, 3), list[int]()
    first = double_of(table, made)
    assert double_of(table, made) is first
    # A view of all of it is the same numbers in another shape, so is made by itself.
    assert double_of(table[None], made).shape == (1, 2, 3)
    assert len(made) == 2


def test_a_table_changed_in_place_is_asked_again() -> None:
    table, made = torch.ones(2, 3), list[int]()
    double_of(table, made)
    table.add_(1)
    assert torch.equal(double_of(table, made), torch.full((2, 3), 4.0))
    assert len(made) == 2


def test_nothing_outlives_its_table() -> None:
    gc.collect()
    before = len(kept._KEPT)
    table = torch.ones(2, 3)
    double_of(table, [])
    assert len(kept._KEPT) == before + 1
    del table
    gc.collect()
    assert len(kept._KEPT) == before


def test_of_large_tables_and_inference_tensors_nothing_is_kept(monkeypatch) -> None:
    made = list[int]()
    with torch.inference_mode():
        table = torch.ones(2, 3)
        double_of(table, made)
        double_of(table, made)
    monkeypatch.setattr(kept, "MAX_BYTES", 8)
    table = torch.ones(2, 3)
    double_of(table, made)
    double_of(table, made)
    assert len(made) == 4


def hmm(generator: torch.Generator) -> HMM:
    def log_rows(*shape: int, dim: int) -> Tensor:
        return torch.randn(*shape, generator=generator).log_softmax(dim)

    return HMM(
        Tables(
            dense_support(WORDS, STATES),
            log_rows(STATES, dim=0),
            TableTransition(log_rows(STATES, STATES, dim=1)),
            log_rows(WORDS, STATES, dim=0),
        )
    )


def test_answers_follow_a_transition_that_is_changed_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = hmm(generator), hmm(generator)
    tokens = torch.randint(WORDS, (3, moves.MIN_POSITIONS + 2), generator=generator)
    first.log_prob(tokens)
    first.posterior(tokens)
    for name in ("log_start", "log_emission"):
        getattr(first.tables, name).copy_(getattr(second.tables, name))
    first.tables.transition.log_prob.copy_(second.tables.transition.log_prob)
    torch.testing.assert_close(first.log_prob(tokens), second.log_prob(tokens))
    torch.testing.assert_close(first.posterior(tokens).probs, second.posterior(tokens).probs)
    torch.testing.assert_close(first.log_prob(tokens).double(), second.to(dtype=torch.float64).log_prob(tokens))
