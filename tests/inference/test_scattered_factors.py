"""The blocked recursion where words share states without a partition, or the transition is a table: as that of distinct tiles."""

import pytest
import torch
from torch import Tensor

from vlhmm.inference.blocked import blocked_factors
from vlhmm.inference.gather import Batch, Boundary, window_factors
from vlhmm.inference.score import score
from vlhmm.models import Model, ModelSettings, build
from vlhmm.ops.blocked_recursion import blocked_recursion
from vlhmm.ops.recursion import recursion
from vlhmm.records import mapped
from vlhmm.support import blocked_support, uniform_support
from vlhmm.tables import Belief


def uniform_model(reset_token: int | None) -> Model:
    generator = torch.Generator().manual_seed(3)
    support = uniform_support(11, 12, 5, generator)
    return build(ModelSettings(states_per_block=5, dim=6), support, reset_token, generator).double()


@pytest.mark.parametrize("reset_token", [None, 2])
@pytest.mark.parametrize("carried", [False, True])
def test_words_that_share_states_equal_distinct_tiles(reset_token: int | None, carried: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    batch = Batch(torch.randint(11, (3, 6), generator=generator), torch.tensor([6, 4, 1]))
    before = Batch(torch.randint(11, (3, 4), generator=generator), torch.tensor([4, 4, 4]))
    results = []
    for scattered in (False, True):
        model = uniform_model(reset_token)
        tables = model.tables()
        belief = score(tables.detach(), before).belief if carried else None
        if scattered:
            run = blocked_recursion(blocked_factors(tables, batch, belief, None))
            log_probs, log_last = run.token_log_probs, run.log_last
        else:
            log_probs, log_last = recursion(window_factors(tables, batch, belief, None))
        (log_probs.sum() + log_last.exp().square().sum()).backward()
        results.append((log_probs, log_last, [parameter.grad for parameter in model.parameters()]))
    (plain, plain_last, plain_grads), (own, own_last, own_grads) = results
    torch.testing.assert_close(own, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(own_last.exp(), plain_last.exp(), rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(own_grads, plain_grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("reset_token", [None, 2])
def test_a_table_that_a_belief_enters_equals_distinct_tiles(reset_token: int | None) -> None:
    """Two draws of states: those that the beliefs speak of, and those of the window."""
    generator = torch.Generator().manual_seed(5)
    support = blocked_support(torch.arange(11) % 3, 3, 6)
    settings = ModelSettings(parameterization="scalar", transition="table", states_per_block=6, init_scale=2.0)
    batch = Batch(torch.randint(11, (4, 6), generator=generator), torch.tensor([6, 4, 1, 6]))
    belief = Belief(torch.tensor([3, 1, 2, 4]), torch.randn(4, 3, generator=generator).double().log_softmax(1))
    results = []
    for by_blocks in (False, True):
        model = build(settings, support, reset_token, torch.Generator().manual_seed(6)).double()
        before, now = (model.kept_after_dropout(0.5, torch.Generator().manual_seed(seed)) for seed in (7, 8))
        previous = type(before)(before.states[model.group_of_word[belief.token]])
        tables, transition = model(previous, now)
        boundary = Boundary(transition)
        if by_blocks:
            run = blocked_recursion(blocked_factors(tables, batch, belief, boundary))
            log_probs, log_last = run.token_log_probs, run.log_last
        else:
            log_probs, log_last = recursion(window_factors(tables, batch, belief, boundary))
        (log_probs.sum() + log_last.exp().square().sum()).backward()
        results.append((log_probs, log_last.exp(), *(parameter.grad for parameter in model.parameters())))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("transition", ["softmax", "block-factored", "table"])
def test_rows_of_a_boundary_come_back_to_those_they_were_split_from(transition: str) -> None:
    """The tables' rows and the boundary's are made as one tensor, so the recursion can read that, and nothing is copied."""
    generator = torch.Generator().manual_seed(5)
    settings = ModelSettings(
        states_per_block=4,
        dim=6,
        transition=transition,  # type: ignore[arg-type]
        parameterization="scalar" if transition == "table" else "neural",
        init_scale=1.0,
    )
    model = build(settings, blocked_support(torch.arange(9) % 3, 3, 4), None, generator).double()
    draws = [model.kept_after_dropout(0.5, generator) for _ in range(2)]
    assert draws[0] is not None
    belief = Belief(torch.tensor([1, 5]), torch.full((2, 2), 0.5, dtype=torch.float64).log())
    tables, entering = model(type(draws[0])(draws[0].states[model.group_of_word[belief.token]]), draws[1])
    assert entering is not None
    batch = Batch(torch.randint(9, (2, 3), generator=generator), torch.tensor([3, 3]))
    joined = blocked_factors(tables, batch, belief, Boundary(entering)).transition
    apart = blocked_factors(tables, batch, belief, Boundary(mapped(entering, Tensor.clone))).transition
    operands = tables.transition.operands()
    assert operands is not None
    one, rows, copied = (made.out for made in (joined, operands, apart))
    assert one.data_ptr() == rows.data_ptr() != copied.data_ptr()
    assert one.shape == (10, *rows.shape[1:])
    assert torch.equal(one, copied)
