"""The low-rank transition of a model: normalised classes, dropout within classes, training, saving."""

import pytest
import torch
from small_models import LOW_RANK, OVERLAPPING, PARTITIONS, small_model
from tiny import tiny_corpus

import vlhmm
from vlhmm.cluster import one_block
from vlhmm.models import StateSubset
from vlhmm.models.heads import LowRankHead
from vlhmm.ops.emission import emitting_states
from vlhmm.transitions import LowRankTransition

SUPPORTS = {**PARTITIONS, **OVERLAPPING}


def parts(transition: object) -> tuple[torch.Tensor, torch.Tensor]:
    """p(r | z) and p(z' | r)."""
    assert isinstance(transition, LowRankTransition)
    return transition.log_out.detach().exp(), transition.log_into.detach().exp().T


@pytest.mark.parametrize("variant", LOW_RANK)
@pytest.mark.parametrize("kind", SUPPORTS)
def test_columns_that_are_dropped_leave_their_mass_to_their_classes(variant: str, kind: str) -> None:
    model = small_model(variant, SUPPORTS[kind])
    columns = model.columns_after_dropout(0.6, torch.Generator().manual_seed(0))
    assert columns is not None
    live = columns.live & emitting_states(model.support)
    to_class, from_class = parts(model.tables().transition)
    remaining = from_class * live
    found = parts(model.tables(columns).transition)
    torch.testing.assert_close(found[0], to_class)
    torch.testing.assert_close(found[1], remaining / remaining.sum(1, keepdim=True))


@pytest.mark.parametrize("variant", LOW_RANK)
@pytest.mark.parametrize("kind", PARTITIONS)
def test_states_that_are_dropped_leave_their_mass_to_their_classes(variant: str, kind: str) -> None:
    model = small_model(variant, PARTITIONS[kind])
    generator = torch.Generator().manual_seed(1)
    previous, kept = (model.kept_after_dropout(0.5, generator) for _ in range(2))
    assert isinstance(previous, StateSubset)
    assert isinstance(kept, StateSubset)
    to_class, from_class = parts(model.tables().transition)
    tables, boundary = model.tables_with_boundary(previous, kept)
    states = kept.states.flatten()
    expected = renormalised(from_class[:, states])
    for transition, source in ((tables.transition, states), (boundary, previous.states.flatten())):
        found = parts(transition)
        torch.testing.assert_close(found[0], to_class[source])
        torch.testing.assert_close(found[1], expected)


def renormalised(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.sum(1, keepdim=True)


@pytest.mark.parametrize("dropout", [{"state_dropout": 0.0}, {"state_dropout": 0.5}])
def test_training_lowers_perplexity_and_a_saved_model_scores_the_same(tmp_path, dropout) -> None:
    corpus = tiny_corpus(200)
    blocks = one_block(corpus.tokenizer.vocab_size)
    model = vlhmm.neural_hmm(blocks, 8, 8, transition="low-rank", rank=4)
    before = vlhmm.LanguageModel(model, corpus.tokenizer, {}).perplexity(corpus.valid)
    stopped = vlhmm.train(model, corpus, epochs=4, batch_size=4, window=16, learning_rate=0.05, **dropout)
    assert stopped.best_perplexity < 0.7 * before
    lm = vlhmm.LanguageModel(model, corpus.tokenizer, {})
    lm.save(tmp_path)
    again = vlhmm.load(tmp_path)
    assert isinstance(again.model.transition, LowRankHead)
    assert again.score("the cat sat").log_prob == lm.score("the cat sat").log_prob


def test_the_preset_builds() -> None:
    from vlhmm.training.presets import preset

    recipe = preset("low-rank")
    assert recipe.model.transition == "low-rank"
    assert recipe.model.rank < recipe.model.states_per_block
