"""Baum-Welch over a corpus."""

import itertools
import signal
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.cluster import one_block
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.models import scalar_hmm
from vlhmm.training.em import EMSettings, em, em_training
from vlhmm.training.trainer import VALID_STREAMS, CheckEvent, StepEvent, Stopped

QUICK = EMSettings(iterations=8, batch_size=8, window=16)


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(200)


def scalar(corpus: vlhmm.Corpus) -> vlhmm.Model:
    generator = torch.Generator().manual_seed(0)
    return scalar_hmm(one_block(corpus.tokenizer.vocab_size), 6, init_scale=0.5, generator=generator)


def losses(corpus: vlhmm.Corpus, settings: EMSettings) -> list[float]:
    """Of each pass: that of its last batch's event."""
    passes, loss = [], 0.0
    for event in em_training(scalar(corpus), corpus, settings):
        if isinstance(event, StepEvent):
            loss = event.loss
        if isinstance(event, CheckEvent):
            passes.append(loss)
    return passes


def test_the_likelihood_never_falls_under_full_batches(corpus: vlhmm.Corpus) -> None:
    found = losses(corpus, EMSettings(iterations=15, batch_size=8, window=16, pseudocount=0.0))
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(found))
    assert found[-1] < found[0] - 0.3


def test_mini_batches_learn_faster_per_pass(corpus: vlhmm.Corpus) -> None:
    full = losses(corpus, QUICK)
    mini = losses(corpus, EMSettings(iterations=8, batch_size=8, window=16, batches_per_step=1, rate=0.2))
    assert mini[-1] < full[-1]


def test_a_resumed_run_ends_with_the_same_bits(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    whole, parts = scalar(corpus), scalar(corpus)
    settings = EMSettings(iterations=4, batch_size=8, window=16, batches_per_step=2)
    em(whole, corpus, settings, out=tmp_path / "whole")
    em(parts, corpus, settings, out=tmp_path / "parts", max_seconds=0.0)
    resumed = scalar(corpus)
    em(resumed, corpus, settings, out=tmp_path / "parts", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert vlhmm.load(tmp_path / "parts").perplexity(corpus.valid) < corpus.tokenizer.vocab_size


def test_a_run_ends_with_its_best_tables(corpus: vlhmm.Corpus) -> None:
    model = scalar(corpus)
    # Large steps after few tokens: validation goes up and down.
    stopped = em(model, corpus, EMSettings(iterations=5, batch_size=4, window=16, batches_per_step=1, rate=0.9))
    perplexity = evaluate(HMMScorer(model.tables().detach()), corpus.valid, streams=VALID_STREAMS).perplexity
    assert perplexity == pytest.approx(stopped.best_perplexity, rel=1e-6)


def test_an_unfinished_pass_is_made_again(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    settings = EMSettings(iterations=3, batch_size=8, window=16, batches_per_step=2)
    whole = scalar(corpus)
    num_steps = em(whole, corpus, settings).num_steps
    events = em_training(scalar(corpus), corpus, settings, out=tmp_path / "run")
    for event in events:
        if isinstance(event, StepEvent) and event.step == num_steps // 3 + 2:
            signal.raise_signal(signal.SIGTERM)
        last = event
    assert isinstance(last, Stopped)
    assert (last.reason, last.step) == ("interrupted", num_steps // 3)
    resumed = scalar(corpus)
    em(resumed, corpus, settings, out=tmp_path / "run", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_only_free_tables_can_be_counted(corpus: vlhmm.Corpus) -> None:
    with pytest.raises(ValueError, match="needs free tables"):
        em(tiny_model(corpus), corpus, QUICK)
