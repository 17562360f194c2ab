"""State dropout: exact counts, equal chances, one generator."""

import pytest
import torch

from vlhmm.models import draw_kept
from vlhmm.models.dropout import kept_per_block


@pytest.mark.parametrize(("states", "dropout", "count"), [(8, 0.5, 4), (5, 0.3, 4), (3, 0.9, 1), (7, 0.99, 1)])
def test_exactly_the_same_number_is_kept_in_every_block(states, dropout, count):
    kept = draw_kept(6, states, dropout, torch.Generator().manual_seed(0))
    assert kept is not None
    assert kept.states.shape == (6, count)
    for block, row in enumerate(kept.states.tolist()):
        assert row == sorted(set(row))
        assert all(block * states <= state < (block + 1) * states for state in row)


def test_every_state_is_kept_equally_often():
    generator = torch.Generator().manual_seed(0)
    blocks, states, draws = 3, 5, 2000
    counts = torch.zeros(blocks * states)
    for _ in range(draws):
        kept = draw_kept(blocks, states, 0.4, generator)
        assert kept is not None
        counts[kept.states.flatten()] += 1
    # Six standard deviations of a binomial count.
    assert ((counts / draws - 0.6).abs() < 6 * (0.6 * 0.4 / draws) ** 0.5).all()


def test_pairs_are_kept_as_often_as_without_replacement():
    generator = torch.Generator().manual_seed(0)
    draws = 3000
    together = torch.zeros(4, 4)
    for _ in range(draws):
        kept = draw_kept(1, 4, 0.5, generator)
        assert kept is not None
        first, second = kept.states[0].tolist()
        together[first, second] += 1
    pairs = together[together > 0] / draws
    assert pairs.shape == (6,)
    assert ((pairs - 1 / 6).abs() < 6 * (5 / 36 / draws) ** 0.5).all()


def test_the_generator_decides():
    first, again, other = (draw_kept(4, 9, 0.5, torch.Generator().manual_seed(seed)) for seed in (7, 7, 8))
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first.states, again.states)
    assert not torch.equal(first.states, other.states)


def test_a_draw_may_be_written_to_a_given_place():
    there = torch.zeros(4, 4, dtype=torch.int64)
    drawn, expected = (draw_kept(4, 9, 0.5, torch.Generator().manual_seed(7), into=into) for into in (there, None))
    assert drawn is not None
    assert expected is not None
    assert drawn.states is there
    assert torch.equal(there, expected.states)


def test_without_dropout_all_are_kept_and_nothing_is_drawn():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert draw_kept(4, 9, 0.0, generator) is None
    assert draw_kept(4, 1, 0.5, generator) is None
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, float("nan")])
def test_dropout_outside_its_range_is_refused(dropout):
    with pytest.raises(ValueError, match=f"state dropout is {dropout}"):
        kept_per_block(8, dropout)
