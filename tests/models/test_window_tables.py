"""Tables of a window: the same HMM without a table of emissions, whose rows are made for the tokens that are asked for."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from small_models import ANY_SUPPORT, OVERLAPPING, PARTITIONS, VARIANTS, small_model
from torch import Tensor

from vlhmm.inference.gather import Batch, Boundary
from vlhmm.inference.score import score
from vlhmm.models import Model, StateSubset
from vlhmm.support import Support
from vlhmm.tables import AnyTables, Belief
from vlhmm.transitions import SoftmaxTransition, TableTransition, Transition

SUPPORTS: dict[str, Support] = {**PARTITIONS, **OVERLAPPING}
CASES = [(variant, kind) for kind in PARTITIONS for variant in VARIANTS]
CASES += [(variant, kind) for kind in OVERLAPPING for variant in ANY_SUPPORT]

Made = tuple[AnyTables, Transition | None]


def text(support: Support) -> Batch:
    tokens = torch.randint(support.num_words, (3, 5), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, torch.tensor([5, 2, 4]))


def scored_with_gradients(model: Model, make: Callable[[], Made], batch: Batch, window: int | None) -> list[Tensor]:
    model.zero_grad()
    tables, _ = make()
    scored = score(tables, batch, window=window)
    scored.token_log_probs.sum().backward()
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]
    return [scored.token_log_probs.detach(), scored.belief.log_probs.detach().exp(), *gradients]


@pytest.mark.parametrize(("variant", "kind"), CASES)
def test_scores_and_gradients_are_those_of_the_tables(variant: str, kind: str) -> None:
    support = SUPPORTS[kind]
    model, batch = small_model(variant, support, reset_token=1), text(support)
    expected = scored_with_gradients(model, partial(model, None, None), batch, None)
    for window in (None, 2):
        found = scored_with_gradients(model, partial(model.window_tables, None, None), batch, window)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_belief_over_other_states_enters_as_it_enters_the_tables(variant: str) -> None:
    support = PARTITIONS["dense"]
    model, batch = small_model(variant, support), text(support)
    before, now = StateSubset(torch.tensor([[0, 2, 3]])), StateSubset(torch.tensor([[1, 2, 4]]))
    previous = StateSubset(before.states.expand(3, -1))
    log_probs = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(1)
    found, expected = (
        score(tables, batch, Belief(batch.tokens[:, 0], log_probs), Boundary(boundary)).token_log_probs
        for tables, boundary in (
            make(previous, now, with_start=False) for make in (model.window_tables, model.tables_with_boundary)
        )
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_softmax_of_a_dense_window_is_a_table_and_of_others_stays_in_factors() -> None:
    kinds = {
        name: type(small_model("neural softmax", SUPPORTS[name]).window_tables(None, None)[0].transition)
        for name in ("dense", "blocked", "uniform")
    }
    assert kinds == {"dense": TableTransition, "blocked": SoftmaxTransition, "uniform": SoftmaxTransition}
    assert isinstance(small_model("neural softmax", SUPPORTS["dense"]).tables().transition, SoftmaxTransition)
