"""Training of the neural baselines: all learn, can be stopped anywhere, and end by their rules."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_baselines import KINDS
from tiny import tiny_corpus

import vlhmm
from vlhmm.baselines import (
    AWDLSTMSettings,
    BaselineSettings,
    FeedForwardSettings,
    LSTMSettings,
    NeuralScorer,
    TrainedBaseline,
    Unigram,
    train_baseline,
)
from vlhmm.baselines.adam import AdamStep
from vlhmm.baselines.training import seconds_per_epoch
from vlhmm.evaluate import evaluate
from vlhmm.settings import settings_from
from vlhmm.training.checkpoint import read_tensors
from vlhmm.training.run_folder import read_log
from vlhmm.training.trainer import CheckEvent, DivergedError, StepEvent


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus()


def trained(settings: BaselineSettings, corpus: vlhmm.Corpus, **options: object) -> TrainedBaseline:
    *_, last = train_baseline(settings, corpus, **options)  # type: ignore[arg-type]
    assert isinstance(last, TrainedBaseline)
    return last


@pytest.mark.parametrize("name", KINDS)
def test_every_baseline_learns_and_ends_with_its_best_weights(corpus: vlhmm.Corpus, name: str) -> None:
    result = trained(KINDS[name], corpus)
    unigram = evaluate(Unigram.of(corpus.train, corpus.tokenizer.vocab_size), corpus.valid).perplexity
    assert result.best_valid < 0.75 * unigram
    assert evaluate(result.scorer, corpus.valid, streams=32).perplexity == pytest.approx(result.best_valid, rel=1e-6)
    assert result.epochs == KINDS[name].epochs
    assert result.reason == "finished"


def test_an_epochs_time_is_that_of_its_windows(corpus: vlhmm.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a step moves on by one: as many seconds as there are windows."""
    settings, steps = KINDS["lstm"], list[int]()
    made = AdamStep.__call__

    def counted(step: AdamStep, tokens: torch.Tensor, fresh: bool) -> None:
        made(step, tokens, fresh)
        steps.append(tokens.numel())

    monkeypatch.setattr(AdamStep, "__call__", counted)
    monkeypatch.setattr("vlhmm.baselines.training.time.perf_counter", lambda: float(len(steps)))
    for num_timed, max_seconds in ((5, 99.0), (5, 2.0)):
        seconds = seconds_per_epoch(
            settings, corpus, device=torch.device("cpu"), steps=num_timed, max_seconds=max_seconds
        )
        assert seconds == pytest.approx(len(corpus.train) / (settings.batch_size * settings.window))
    assert len(steps) == 5 + 3


@pytest.mark.parametrize("name", ["feedforward", "lstm", "awd-lstm", "hmm-add"])
def test_a_run_stopped_after_every_step_ends_with_the_same_bits(
    corpus: vlhmm.Corpus, tmp_path: Path, name: str
) -> None:
    settings = replace(KINDS[name], epochs=2, window=40)
    if isinstance(settings, AWDLSTMSettings):
        settings = replace(settings, average_after=1)
    whole = trained(settings, corpus, out=tmp_path / "whole")
    parts = trained(settings, corpus, out=tmp_path / "parts", max_seconds=0.0)
    assert parts.reason == "time"
    stops = 1
    while parts.reason == "time":
        parts = trained(settings, corpus, out=tmp_path / "parts", resume=True, max_seconds=0.0)
        stops += 1
    assert stops > 10
    for value, theirs in zip(whole.scorer.model.parameters(), parts.scorer.model.parameters(), strict=True):
        assert torch.equal(value, theirs)
    ours, resumed = (read_tensors(tmp_path / part / "training.safetensors")[0] for part in ("whole", "parts"))
    assert ours.keys() == resumed.keys()
    for key, value in ours.items():
        assert torch.equal(value, resumed[key]), key
    logs = [
        [(record["step"], record["valid_perplexity"]) for record in read_log(tmp_path / part)]
        for part in ("whole", "parts")
    ]
    assert logs[0] == logs[1]


def test_the_seed_alone_decides(corpus: vlhmm.Corpus) -> None:
    settings = replace(KINDS["lstm"], epochs=1)
    weights = []
    for seed, other_seed in ((3, 0), (3, 1), (4, 1)):
        torch.manual_seed(other_seed)
        model = trained(settings, corpus, seed=seed).scorer.model
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_training_ends_when_the_rate_is_at_its_floor(corpus: vlhmm.Corpus) -> None:
    settings = replace(KINDS["feedforward"], epochs=500, patience=1, decay=10.0, min_rate=1e-3, checks_per_epoch=1)
    result = trained(settings, corpus)
    assert result.reason == "flat"
    assert result.epochs < 500
    assert trained(replace(settings, epochs=4, schedule="constant"), corpus).reason == "finished"


def test_events_tell_what_happens(corpus: vlhmm.Corpus) -> None:
    settings = KINDS["feedforward"]
    events = list(train_baseline(settings, corpus))
    steps = [event for event in events if isinstance(event, StepEvent)]
    checks = [event for event in events if isinstance(event, CheckEvent)]
    assert [event.step for event in steps] == list(range(1, steps[0].num_steps + 1))
    assert steps[-1].tokens == steps[-1].num_steps * settings.batch_size * settings.window
    assert steps[-1].loss < steps[0].loss
    assert len(checks) == settings.epochs * settings.checks_per_epoch
    assert min(check.valid_perplexity for check in checks) == checks[-1].best_perplexity


def test_a_run_is_not_resumed_with_other_settings_model_or_text(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    settings, out = KINDS["lstm"], tmp_path / "run"
    trained(settings, corpus, out=out, max_seconds=0.0)
    with pytest.raises(ValueError, match=r"learning_rate = 0\.03, not 0\.5"):
        trained(replace(settings, learning_rate=0.5), corpus, out=out, resume=True)
    with pytest.raises(ValueError, match="seed = 0, not 1"):
        trained(settings, corpus, seed=1, out=out, resume=True)
    with pytest.raises(ValueError, match="a run of LSTMSettings, not of FeedForwardSettings"):
        trained(KINDS["feedforward"], corpus, out=out, resume=True)
    with pytest.raises(ValueError, match="same settings and text"):
        trained(settings, tiny_corpus(200), out=out, resume=True)
    with pytest.raises(ValueError, match="already holds a run"):
        trained(settings, corpus, out=out)


def test_divergence_is_an_error_not_a_number(corpus: vlhmm.Corpus) -> None:
    settings = replace(KINDS["feedforward"], learning_rate=1e4, clip=0.0)
    with pytest.raises(DivergedError, match="smaller learning_rate"):
        trained(settings, corpus)


@pytest.mark.parametrize("name", ["lstm", "awd-lstm"])
def test_a_text_shorter_than_one_window_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="make batch_size"):
        trained(replace(KINDS[name], batch_size=1000), tiny_corpus(30))


def test_resume_needs_a_folder(corpus: vlhmm.Corpus) -> None:
    with pytest.raises(ValueError, match="give out="):
        trained(KINDS["lstm"], corpus, resume=True)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (LSTMSettings, {"dropout": 1.0}, "dropout is 1.0, but must be at least 0 and below 1"),
        (LSTMSettings, {"dim": 0}, "dim is 0, but must be finite and at least 1"),
        (LSTMSettings, {"dims": 3}, "did you mean 'dim'"),
        (FeedForwardSettings, {"order": 1}, "order is 1, but must be finite and at least 2"),
        (FeedForwardSettings, {"learning_rate": 0.0}, "learning_rate is 0.0, but must be finite and above 0"),
        (AWDLSTMSettings, {"weight_dropout": -0.1}, "weight_dropout is -0.1"),
        (AWDLSTMSettings, {"clip": float("nan")}, "clip is nan"),
    ],
)
def test_bad_settings_are_refused(kind: type[BaselineSettings], values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_from(kind, values)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_every_baseline_learns_on_a_gpu(corpus: vlhmm.Corpus, name: str) -> None:
    result = trained(KINDS[name], corpus, device="cuda")
    unigram = evaluate(Unigram.of(corpus.train, corpus.tokenizer.vocab_size), corpus.valid).perplexity
    assert result.best_valid < 0.75 * unigram
    on_cpu = NeuralScorer(result.scorer.model.cpu())
    assert evaluate(on_cpu, corpus.valid, streams=32).perplexity == pytest.approx(result.best_valid, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lstm", "awd-lstm", "hmm", "hmm-gate", "hmm-rnn"])
def test_a_graph_computes_what_single_kernels_do(corpus: vlhmm.Corpus, name: str) -> None:
    results = []
    for graphs in (False, True):
        settings = replace(KINDS[name], graphs=graphs, epochs=1)  # type: ignore[call-arg]
        if isinstance(settings, LSTMSettings):
            settings = replace(settings, dropout=0.0)
        if isinstance(settings, AWDLSTMSettings):
            still = dict.fromkeys(("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout"), 0.0)
            settings = replace(settings, **still, weight_dropout=0.0, epochs=3)
        results.append(trained(settings, corpus, device="cuda").best_valid)
    assert results[1] == pytest.approx(results[0], rel=1e-3)
