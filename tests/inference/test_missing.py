"""Missing tokens: the sum over all words that may have stood there, by enumeration; and in training."""

import itertools
from dataclasses import replace

import pytest
import torch
from models.small_models import OVERLAPPING, PARTITIONS, small_model
from tiny import tiny_corpus

import vlhmm
from vlhmm.inference.gather import Batch
from vlhmm.inference.missing import draw_missing, without
from vlhmm.inference.score import score
from vlhmm.models import Model, StateSubset
from vlhmm.training.gradient import train
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

TEXT = torch.tensor([[2, 0, 4, 1, 2], [6, 3, 3, 8, 5]])
MISSING = torch.tensor([[False, True, True, False, True], [True, False, False, True, False]])
VARIANTS = ["neural softmax", "neural block-factored", "neural low-rank", "scalar"]


def summed(tables: vlhmm.tables.Tables, text: list[int], missing: list[bool], reset: int | None) -> torch.Tensor:
    """log of the sum over all texts that agree where nothing is missing, and have words of the same blocks elsewhere."""
    groups = tables.support.group_of_word
    choices = [
        [word for word in range(tables.num_words) if groups[word] == groups[token] and word != reset]
        if gone
        else [token]
        for token, gone in zip(text, missing, strict=True)
    ]
    texts = [list(chosen) for chosen in itertools.product(*choices)]
    return vlhmm.HMM(tables).log_prob(texts).logsumexp(0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("support", ["dense", "blocked"])
@pytest.mark.parametrize("reset", [None, 2])
def test_the_score_is_the_sum_over_all_words_of_the_blocks(variant: str, support: str, reset: int | None) -> None:
    model = small_model(variant, PARTITIONS[support], reset_token=reset)
    text, missing = TEXT % model.support.num_words, MISSING.clone()
    missing &= text != (-1 if reset is None else reset)
    kept = None
    if variant != "neural low-rank":
        kept = model.kept_after_dropout(0.4, torch.Generator().manual_seed(0))
    parameters = list(model.parameters())
    for window in {None, kept} if kept is None else [None, kept]:
        found = _found(model, window, text, missing)
        tables = model.tables(window)
        expected = torch.stack(
            [summed(tables, row.tolist(), gone.tolist(), reset) for row, gone in zip(text, missing, strict=True)]
        )
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        gradients = [torch.autograd.grad(each.sum(), parameters, allow_unused=True) for each in (found, expected)]
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def _found(model: Model, window: StateSubset | None, text: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    batch = Batch(text, torch.full((len(text),), text.shape[1]))
    found = score(*without(model.tables(window), batch, missing)).token_log_probs.sum(1)
    if model.support.dense:
        by_rows = score(*without(model.window_tables(None, window)[0], batch, missing)).token_log_probs.sum(1)
        torch.testing.assert_close(by_rows, found, rtol=1e-11, atol=1e-11)
    return found


def test_a_block_of_the_reset_token_alone_leaves_gradients_that_are_numbers() -> None:
    model = small_model("neural block-factored", PARTITIONS["cloned"], reset_token=1)
    batch = Batch(torch.tensor([[0, 1, 2, 3]]), torch.tensor([4]))
    missing = torch.tensor([[True, False, True, False]])
    score(*without(model.tables(), batch, missing)).token_log_probs.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)


def test_tokens_are_missing_at_the_rate_but_for_the_reset_token() -> None:
    tokens = torch.randint(5, (40, 50), generator=torch.Generator().manual_seed(0))
    missing = draw_missing(tokens, 0.3, 2, torch.Generator().manual_seed(0))
    assert not bool(missing[tokens == 2].any())
    assert 0.25 < float(missing[tokens != 2].float().mean()) < 0.35
    assert torch.equal(missing, draw_missing(tokens, 0.3, 2, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_a_step_scores_what_is_left_and_carries_the_belief_on(support: str) -> None:
    model = small_model("neural block-factored", PARTITIONS[support])
    text = TEXT % model.support.num_words
    settings = TrainSettings(batch_size=2, window=5, token_dropout=0.5, state_dropout=0.0, learning_rate=1e-9)
    step = Step(model, settings)
    generator = torch.Generator().manual_seed(settings.seed)
    missing = [draw_missing(text, 0.5, None, generator) for _ in range(2)]
    losses = []
    for number in range(2):
        step(text, 0.0, fresh=number == 0)
        losses.append(float(step.loss))
    tables = model.tables().detach()
    both, gone = text.repeat(1, 2), torch.cat(missing, dim=1)
    assert bool(gone[:, -1].any() | gone[:, 4].any())
    expected = score(*without(tables, Batch(both, torch.tensor([10, 10])), gone)).token_log_probs
    assert losses[0] == pytest.approx(-float(expected[:, :5].mean()))
    assert losses[1] == pytest.approx(-float(expected[:, 5:].mean()))


def test_training_with_missing_tokens_learns_the_text() -> None:
    corpus = tiny_corpus(60)
    blocks = vlhmm.brown_clusters(
        corpus.train, 5, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    perplexities = []
    for epochs in (1, 6):
        model = vlhmm.neural_hmm(blocks, 6, 16, eos_id=corpus.tokenizer.eos_id, reset="eos")
        settings = TrainSettings(epochs=epochs, batch_size=4, window=16, token_dropout=0.2, learning_rate=0.02)
        perplexities.append(train(model, corpus, settings).best_perplexity)
    assert perplexities[1] < 0.7 * perplexities[0]


def test_what_cannot_be_summed_over_is_refused() -> None:
    settings = TrainSettings(token_dropout=0.1, dropout="columns")
    with pytest.raises(ValueError, match=r"token_dropout 0\.1 needs words in blocks"):
        Step(small_model("neural softmax", OVERLAPPING["uniform"]), settings)
    model = small_model("scalar", PARTITIONS["blocked"])
    model.settings = replace(model.settings, emission="unmasked")
    with pytest.raises(ValueError, match='emission "unmasked"'):
        Step(model, settings)
    with pytest.raises(ValueError, match="token_dropout is 1"):
        TrainSettings(token_dropout=1.0)
