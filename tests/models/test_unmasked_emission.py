"""Unmasked emissions: what falls on words of other blocks is lost."""

import pytest
import torch
from small_models import OVERLAPPING, PARTITIONS
from tiny import tiny_corpus

import vlhmm
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.hmm import HMM
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import score
from vlhmm.models import Model, ModelSettings, build, scalar_hmm
from vlhmm.support import Support
from vlhmm.training.gradient import train

SUPPORTS = {**PARTITIONS, **OVERLAPPING}


def unmasked(support: Support, emission: str = "unmasked") -> Model:
    settings = ModelSettings(
        "scalar",
        states_per_block=support.states_per_word,
        transition="table",
        emission=emission,  # type: ignore[arg-type]
        init_scale=1.0,
    )
    return build(settings, support, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize("kind", SUPPORTS)
def test_each_cell_is_its_share_of_all_words(kind: str) -> None:
    support = SUPPORTS[kind]
    model = unmasked(support)
    everywhere = model.emission.logits.softmax(1)
    states = support.states_of(torch.arange(support.num_words))
    words = torch.arange(support.num_words)[:, None]
    torch.testing.assert_close(model.tables().log_emission.exp(), everywhere[states, words])
    if not support.partition:
        return
    kept = model.kept_after_dropout(0.5, torch.Generator().manual_seed(1))
    assert kept is not None
    states = kept.states[support.group_of_word]
    torch.testing.assert_close(model.tables(kept).log_emission.exp(), everywhere[states, words])


def test_one_block_loses_nothing() -> None:
    support = PARTITIONS["dense"]
    masked, free = unmasked(support, "blocked"), unmasked(support)
    with torch.no_grad():
        masked.emission.logits.copy_(free.emission.logits.T)
    torch.testing.assert_close(masked.tables().log_emission, free.tables().log_emission)


def test_probability_outside_the_blocks_is_lost() -> None:
    """All sentences together have less than 1, so perplexity is an upper bound."""
    model = unmasked(PARTITIONS["cloned"])
    assert 0 < total_of_sentences(model) < 0.5
    # Four words of equal mass, each in a block of its own: a quarter is left at every position.
    with torch.no_grad():
        model.emission.logits.zero_()
    assert total_of_sentences(model) == pytest.approx(4**-3)
    with pytest.raises(ValueError, match=r"emission: row 0 sums to 0\.25"):
        HMM(model.tables())


def total_of_sentences(model: Model) -> float:
    """p of all sentences of three words."""
    sentences = torch.cartesian_prod(*[torch.arange(model.support.num_words)] * 3)
    batch = Batch(sentences, torch.full((sentences.shape[0],), 3))
    return float(score(model.tables().detach(), batch).token_log_probs.sum(1).exp().sum())


def test_it_learns_to_lose_little() -> None:
    corpus = tiny_corpus(100)
    blocks = vlhmm.brown_clusters(
        corpus.train, 5, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    model = scalar_hmm(blocks, 4, emission="unmasked")
    assert model.num_parameters == 20 + 20 * 20 + 20 * corpus.tokenizer.vocab_size
    before = evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity
    train(model, corpus, learning_rate=0.1, epochs=4, batch_size=4, window=8, checks_per_epoch=1, state_dropout=0.25)
    assert evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity < 0.3 * before
