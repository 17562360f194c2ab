"""Dropout by columns: a dropped state cannot be entered, the others share its mass, and no word is left without a state."""

import numpy as np
import pytest
import torch
from oracle import Oracle
from small_models import ANY_SUPPORT, LOW_RANK, OVERLAPPING, PARTITIONS, VARIANTS, small_model

from vlhmm.hmm import HMM
from vlhmm.models import ColumnMask, Model, draw_columns
from vlhmm.ops.emission import emitting_states
from vlhmm.support import cloned_support, dense_support, uniform_support
from vlhmm.tables import Tables

CASES = [
    *((variant, kind) for variant in VARIANTS for kind in PARTITIONS if variant not in LOW_RANK),
    *((variant, kind) for variant in ANY_SUPPORT for kind in OVERLAPPING if variant not in LOW_RANK),
]
SUPPORTS = {**PARTITIONS, **OVERLAPPING}


def drawn(model: Model, seed: int = 0, dropout: float = 0.6) -> ColumnMask:
    columns = model.columns_after_dropout(dropout, torch.Generator().manual_seed(seed))
    assert columns is not None
    return columns


def dense(tables: Tables) -> Oracle:
    emission = torch.zeros(tables.num_words, tables.num_states, dtype=torch.float64)
    states = tables.support.states_of(torch.arange(tables.num_words))
    emission.scatter_(1, states, tables.log_emission.detach().exp())
    rows = tables.transition.log_rows(torch.arange(tables.num_states)).detach().exp()
    return Oracle(tables.log_start.detach().exp().numpy(), rows.numpy(), emission.T.numpy())


def without_columns(full: Oracle, live: np.ndarray, num_blocks: int | None) -> Oracle:
    """Dead columns emptied and rows renormalised: as a whole, or within each of `num_blocks`."""
    start, rows = full.start * live, full.transition * live
    if num_blocks is None:
        rows = rows / rows.sum(1, keepdims=True)
    else:
        shape = (full.num_states, num_blocks, -1)
        total = rows.reshape(shape).sum(2, keepdims=True)
        share = np.divide(full.transition.reshape(shape).sum(2, keepdims=True), total, where=total > 0, out=total * 0)
        rows = (rows.reshape(shape) * share).reshape(full.num_states, -1)
    return Oracle(start / start.sum(), rows, full.emission)


@pytest.mark.parametrize(("variant", "kind"), CASES)
def test_dead_columns_are_emptied_and_rows_renormalised(variant, kind):
    support = SUPPORTS[kind]
    model = small_model(variant, support)
    columns = drawn(model)
    live = (columns.live & emitting_states(support)).numpy()
    factored = VARIANTS[variant].transition == "block-factored"
    expected = without_columns(dense(model.tables()), live, support.num_groups if factored else None)
    tables = model.tables(columns)
    found = dense(tables)
    np.testing.assert_allclose(found.start, expected.start, rtol=1e-9)
    np.testing.assert_allclose(found.transition, expected.transition, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(found.emission, expected.emission, rtol=1e-9)
    np.testing.assert_allclose(found.transition.sum(1), 1.0)
    words = np.random.default_rng(0).integers(0, support.num_words, (3, 4))
    log_prob = HMM(tables).log_prob(torch.from_numpy(words)).detach()
    np.testing.assert_allclose(log_prob, [expected.log_prob(row) for row in words], rtol=1e-9)


@pytest.mark.parametrize(("variant", "kind"), CASES)
def test_gradients_are_finite_and_dead_states_have_none_of_the_likelihood(variant, kind):
    model = small_model(variant, SUPPORTS[kind])
    columns = drawn(model)
    words = torch.from_numpy(np.random.default_rng(1).integers(0, SUPPORTS[kind].num_words, (3, 5)))
    hmm = HMM(model.tables(columns))
    hmm.log_prob(words).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    posterior = HMM(model.tables(columns).detach()).posterior(words).dense()
    assert (posterior[:, :, ~columns.live] == 0).all()


@pytest.mark.parametrize(
    "support", [uniform_support(50, 12, 2, torch.Generator().manual_seed(0)), cloned_support(6, 1)]
)
def test_every_word_keeps_a_state(support):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        columns = draw_columns(support, 0.9, generator)
        assert columns is not None
        assert columns.live[support.states_of_group].any(1).all()


def test_each_state_is_alive_by_its_own_coin():
    generator = torch.Generator().manual_seed(0)
    draws, states = 4000, 30
    live = torch.stack([draw_columns(dense_support(3, states), 0.7, generator).live for _ in range(draws)]).double()
    # Six standard deviations; that all 30 are dropped, and one of them kept after all, happens once in 44,000 draws.
    assert ((live.mean(0) - 0.3).abs() < 6 * (0.3 * 0.7 / draws) ** 0.5).all()
    together = live.T @ live / draws
    together.fill_diagonal_(0.09)
    assert ((together - 0.09).abs() < 6 * (0.09 * 0.91 / draws) ** 0.5).all()


def test_the_one_that_stays_for_a_word_is_any_of_its_states():
    """All dropped in 0.99^4 of the draws."""
    generator = torch.Generator().manual_seed(0)
    draws = 2000
    live = torch.stack([draw_columns(dense_support(3, 4), 0.99, generator).live for _ in range(draws)]).double()
    assert ((live.mean(0) - 0.255).abs() < 6 * (0.25 * 0.75 / draws) ** 0.5).all()


def test_without_dropout_nothing_is_drawn():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert draw_columns(dense_support(3, 4), 0.0, generator) is None
    assert torch.equal(generator.get_state(), before)
    with pytest.raises(ValueError, match="state dropout is 1"):
        draw_columns(dense_support(3, 4), 1.0)
