"""Training: it learns, it can be stopped and resumed to the same bits, and it stops when it breaks."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.baselines import Unigram
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.models import scalar_hmm
from vlhmm.progress import result_of
from vlhmm.training.checkpoint import FolderError, read_tensors
from vlhmm.training.em import EMSettings, em_training
from vlhmm.training.gradient import train, training
from vlhmm.training.gradient_task import GradientTask
from vlhmm.training.run_folder import RunFolder, read_log
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import CheckEvent, DivergedError, Event, StepEvent, Stopped, save_run

QUICK = TrainSettings(epochs=2, batch_size=4, window=16, checks_per_epoch=2, ema=0.9, weight_decay=0.01)


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus()


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
@pytest.mark.parametrize("reset", ["eos", "carry"])
def test_training_beats_the_unigram(corpus: vlhmm.Corpus, transition: str, reset: str) -> None:
    model = tiny_model(corpus, transition=transition, reset=reset)
    stopped = train(model, corpus, QUICK, epochs=4)
    unigram = evaluate(Unigram.of(corpus.train, corpus.tokenizer.vocab_size), corpus.valid).perplexity
    assert stopped.reason == "finished"
    assert stopped.best_perplexity < 0.6 * unigram
    # The model is left with the weights of the best check.
    ours = evaluate(HMMScorer(model.tables().detach()), corpus.valid, streams=32).perplexity
    assert ours == pytest.approx(stopped.best_perplexity, rel=1e-6)


def test_independent_windows_train_too(corpus: vlhmm.Corpus) -> None:
    model = tiny_model(corpus)
    first = evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity
    assert train(model, corpus, QUICK, windows="independent").best_perplexity < first


def test_a_scalar_model_trains_by_the_same_loop(corpus: vlhmm.Corpus) -> None:
    blocks = vlhmm.brown_clusters(
        corpus.train, 5, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    model = scalar_hmm(blocks, states_per_block=4)
    first = evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity
    assert train(model, corpus, QUICK, learning_rate=0.1).best_perplexity < 0.8 * first


def events_until(step: int, model: vlhmm.Model, corpus: vlhmm.Corpus, settings: TrainSettings, out: Path) -> None:
    """Trains and is gone after `step`, like a process that was killed."""
    for event in training(model, corpus, settings, out=out):
        if isinstance(event, StepEvent) and event.step == step:
            return


@pytest.mark.parametrize("state_dropout", [0.0, 0.5])
@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_a_resumed_run_ends_with_the_same_bits(
    corpus: vlhmm.Corpus, tmp_path: Path, state_dropout: float, schedule: str
) -> None:
    settings = replace(QUICK, state_dropout=state_dropout, schedule=schedule)  # type: ignore[arg-type]
    whole, parts = tiny_model(corpus), tiny_model(corpus)
    num_steps = train(whole, corpus, settings, out=tmp_path / "whole").num_steps
    # Killed in the first epoch between two checks, and resumed from the last checkpoint before it.
    events_until(round(0.4 * num_steps) + 1, parts, corpus, settings, tmp_path / "parts")
    resumed = tiny_model(corpus)
    train(resumed, corpus, settings, out=tmp_path / "parts", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    ours, theirs = (read_tensors(tmp_path / part / "training.safetensors")[0] for part in ("whole", "parts"))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    logs = [
        [(record["kind"], record["step"], record.get("valid_perplexity")) for record in read_log(tmp_path / part)]
        for part in ("whole", "parts")
    ]
    assert logs[0] == logs[1]


def test_running_out_of_time_can_be_resumed(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    stopped = train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", max_seconds=0.0)
    assert (stopped.reason, stopped.step) == ("time", 1)
    assert vlhmm.load(tmp_path / "run").next_tokens("the")
    assert train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", resume=True).reason == "finished"


def test_a_run_is_not_resumed_with_other_settings_or_text(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", max_seconds=0.0)
    with pytest.raises(ValueError, match=r"learning_rate = 0\.01, not 0\.5"):
        train(tiny_model(corpus), corpus, QUICK, learning_rate=0.5, out=tmp_path / "run", resume=True)
    other = tiny_corpus(200)
    with pytest.raises(ValueError, match="same text"):
        train(tiny_model(other), other, QUICK, out=tmp_path / "run", resume=True)


def test_a_folder_that_holds_a_run_or_is_in_use_is_refused(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", max_seconds=0.0)
    with pytest.raises(FolderError, match="already holds a run"):
        train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run")
    with RunFolder(tmp_path / "run", resume=True), pytest.raises(FolderError, match="in use by another process"):
        train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", resume=True)


def test_divergence_stops_and_keeps_the_last_good_model(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=3, ema=0.0, schedule="constant", warmup=0.0)
    model = tiny_model(corpus)
    events = training(model, corpus, settings, out=tmp_path / "run")
    for event in events:
        if isinstance(event, CheckEvent):
            break
    with torch.no_grad():
        model.encoder.embedding.weight.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(DivergedError, match=r"diverged at step \d+ of \d+.*last good checkpoint"):
        for _ in events:
            pass
    assert vlhmm.load(tmp_path / "run").perplexity(corpus.valid) < corpus.tokenizer.vocab_size


def test_broken_weights_are_neither_checked_nor_saved(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    model = tiny_model(corpus)
    task = GradientTask(model, corpus, QUICK, out=tmp_path / "run")
    with RunFolder(tmp_path / "run", resume=False) as folder:
        task.make_step(next(task.batches()))
        save_run(task, folder)
        good = read_tensors(tmp_path / "run" / "training.safetensors")[0]
        with torch.no_grad():
            model.encoder.embedding.weight[0, 0] = float("inf")  # type: ignore[union-attr]
        for act in (lambda: result_of(task.evaluating()), partial(save_run, task, folder)):
            with pytest.raises(DivergedError, match=r"encoder\.embedding\.weight is no longer finite"):
                act()
        after = read_tensors(tmp_path / "run" / "training.safetensors")[0]
        assert all(torch.equal(value, after[name]) for name, value in good.items())


def test_the_log_is_json_lines_that_rise(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} == {"step", "check"}
    steps = [record["step"] for record in records]
    assert steps == sorted(steps)
    assert sum(record["kind"] == "check" for record in records) == QUICK.epochs * QUICK.checks_per_epoch


def test_events_end_with_stopped(corpus: vlhmm.Corpus) -> None:
    events = list(training(tiny_model(corpus), corpus, QUICK))
    assert isinstance(events[-1], Stopped)
    assert sum(isinstance(event, StepEvent) for event in events) == events[-1].num_steps


def test_bad_settings_are_refused_with_the_nearest_name(corpus: vlhmm.Corpus) -> None:
    with pytest.raises(ValueError, match="did you mean 'learning_rate'"):
        train(tiny_model(corpus), corpus, learning_rat=0.1)
    with pytest.raises(ValueError, match="state_dropout is 1"):
        train(tiny_model(corpus), corpus, state_dropout=1.0)
    with pytest.raises(ValueError, match=r"tokens, but one window"):
        train(tiny_model(corpus), corpus, batch_size=1000)
    with pytest.raises(ValueError, match="build the model on this corpus"):
        train(tiny_model(corpus), tiny_corpus(1), QUICK)


def test_the_first_loss_is_the_likelihood_of_the_first_window(corpus: vlhmm.Corpus) -> None:
    model = tiny_model(corpus)
    window = next(Epoch(corpus.train, "carried", 4, 16, 0, 0).windows())
    expected = -float(vlhmm.HMM(model.tables().detach()).log_prob(window).sum()) / window.numel()
    events = training(model, corpus, replace(QUICK, state_dropout=0.0))
    first = next(event for event in events if isinstance(event, StepEvent))
    assert first.loss == pytest.approx(expected, rel=1e-5)


def test_training_ends_when_the_rate_is_too_low_to_matter(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    # The first rate changes hardly anything, so hardly any check is better than the last: the rate falls at once.
    slow = replace(QUICK, schedule="plateau", learning_rate=1e-9, patience=1, epochs=20, warmup=0.0, ema=0.0)
    ended = train(tiny_model(corpus), corpus, slow, min_rate=1e-9 / 4**2, out=tmp_path / "run")
    assert ended.reason == "finished"
    assert ended.step < ended.num_steps
    # What has ended stays so, and leaves the model with its best weights.
    again = tiny_model(corpus)
    resumed = train(again, corpus, slow, min_rate=1e-9 / 4**2, out=tmp_path / "run", resume=True)
    assert (resumed.reason, resumed.step) == ("finished", ended.step)
    ours = evaluate(HMMScorer(again.tables().detach()), corpus.valid, streams=32).perplexity
    assert ours == pytest.approx(ended.best_perplexity, rel=1e-6)


@pytest.mark.parametrize(("seconds_of_a_save", "saves"), [(2.0, 8), (1e9, 2)])
def test_saves_that_take_long_are_made_seldom(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_of_a_save: float, saves: int
) -> None:
    now, saved_at = 0.0, list[float]()

    def save_state(*_: object) -> None:
        nonlocal now
        now += seconds_of_a_save
        saved_at.append(now)

    monkeypatch.setattr("vlhmm.training.trainer.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(RunFolder, "save_state", save_state)
    ended = train(tiny_model(corpus), corpus, QUICK, epochs=4, out=tmp_path / "run")
    # Every check, or the first one and the end.
    assert (ended.step, len(saved_at)) == (ended.num_steps, saves)


def test_seldom_saved_runs_end_with_everything_saved(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine: a minute after the last save there would be another.
    monkeypatch.setattr("vlhmm.training.trainer.time", SimpleNamespace(monotonic=lambda: 0.0))
    model = tiny_model(corpus)
    saved_during = [
        (tmp_path / "run" / "training.safetensors").exists()
        for event in training(model, corpus, QUICK, out=tmp_path / "run", save_seconds=1e9)
        if isinstance(event, StepEvent)
    ]
    assert not any(saved_during)
    saved = vlhmm.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    again = train(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", resume=True)
    assert again.step == again.num_steps


class Clock:
    """Time that passes by one second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("method", ["gradient", "em"])
def test_seconds_are_those_of_all_runs_and_not_of_the_time_between(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    clock = Clock()
    monkeypatch.setattr("vlhmm.training.trainer.time", clock)

    def events(resume: bool) -> Iterator[Event]:
        if method == "gradient":
            return training(tiny_model(corpus), corpus, QUICK, out=tmp_path / "run", resume=resume)
        blocks = vlhmm.brown_clusters(corpus.train, 5, vocab_size=corpus.tokenizer.vocab_size)
        settings = EMSettings(iterations=4, batch_size=4, window=16)
        return em_training(
            scalar_hmm(blocks, states_per_block=4), corpus, settings, out=tmp_path / "run", resume=resume
        )

    checks = 0
    for event in events(resume=False):
        checks += isinstance(event, CheckEvent)
        if checks == 3:
            break
    saved = json.loads(read_tensors(tmp_path / "run" / "training.safetensors")[1]["state"])["seconds"]
    assert saved > 0
    clock.now += 1e6
    begun = clock.now
    *_, last = events(resume=True)
    assert isinstance(last, Stopped)
    assert saved + clock.now - begun - 5 <= last.seconds <= saved + clock.now - begun
    seconds = [record["seconds"] for record in read_log(tmp_path / "run") if record["kind"] == "check"]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= last.seconds
