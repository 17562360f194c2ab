"""The one loop: what holds for every kind of training."""

import math
import signal
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import tiny_corpus, tiny_model

from vlhmm.baselines import AWDLSTMSettings, FeedForwardSettings, train_baseline
from vlhmm.cluster import one_block
from vlhmm.distillation.decoder import DecoderSettings, DecoderTraining, decoder_training
from vlhmm.evaluate import scored_windows
from vlhmm.models import scalar_hmm
from vlhmm.training.checkpoint import load_model, read_tensors
from vlhmm.training.em import EMSettings, em_training
from vlhmm.training.gradient import training
from vlhmm.training.run_folder import RunFolder, read_log
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import CheckEvent, StepEvent, Stopped, last_event, relay

CORPUS = tiny_corpus(60)
MODEL = tiny_model(CORPUS)


def gradient(**options: Any) -> Iterator[object]:
    settings = TrainSettings(epochs=2, batch_size=4, window=16, checks_per_epoch=2, ema=0.9)
    return training(deepcopy(MODEL), CORPUS, settings, **options)


def baum_welch(**options: Any) -> Iterator[object]:
    generator = torch.Generator().manual_seed(0)
    model = scalar_hmm(one_block(CORPUS.tokenizer.vocab_size), 6, init_scale=0.5, generator=generator)
    return em_training(model, CORPUS, EMSettings(iterations=4, batch_size=8, window=16, batches_per_step=2), **options)


def baseline(**options: Any) -> Iterator[object]:
    settings = FeedForwardSettings(
        dim=12, order=4, batch_size=4, window=16, epochs=2, checks_per_epoch=2, weight_decay=0.0
    )
    return train_baseline(settings, CORPUS, **options)


def awd_lstm(**options: Any) -> Iterator[object]:
    settings = AWDLSTMSettings(
        embedding_dim=8, hidden_dim=8, num_layers=1, batch_size=4, window=20, epochs=4, weight_decay=0.0
    )
    return train_baseline(settings, CORPUS, **options)


def decoder(**options: Any) -> Iterator[object]:
    how = DecoderTraining(tokens=900, batch_size=4, window=16, checks=4, weight_decay=0.0)
    return decoder_training(CORPUS, DecoderSettings(dim=16, layers=1, heads=2), how, **options)


Kind = Callable[..., Iterator[object]]
kinds = pytest.mark.parametrize("kind", [gradient, baum_welch, baseline, awd_lstm, decoder])


def same_state(one: Path, other: Path) -> None:
    ours, theirs = (read_tensors(folder / "training.safetensors")[0] for folder in (one, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@kinds
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_by_a_signal_resumes_to_the_same_bits_and_log(
    tmp_path: Path, kind: Kind, number: signal.Signals
) -> None:
    steps = [event for event in kind(out=tmp_path / "whole") if isinstance(event, StepEvent)]
    made = []
    for event in kind(out=tmp_path / "parts"):
        if isinstance(event, StepEvent):
            made.append(event)
            if event.step == len(steps) // 2 + 1:
                signal.raise_signal(number)
    assert getattr(event, "reason", None) == "interrupted"
    assert made == steps[: len(made)]
    assert len(made) == len(steps) // 2 + 1
    *_, last = kind(out=tmp_path / "parts", resume=True)
    assert getattr(last, "reason", None) == "finished"
    same_state(tmp_path / "whole", tmp_path / "parts")
    logs = [
        [{name: value for name, value in record.items() if "seconds" not in name} for record in read_log(folder)]
        for folder in (tmp_path / "whole", tmp_path / "parts")
    ]
    # A line of steps since resume is a mean of fewer.
    checks = [[record for record in log if record["kind"] == "check"] for log in logs]
    assert checks[0] == checks[1]
    assert len(checks[0]) == 4


@pytest.mark.parametrize(
    ("kind", "check"), [(gradient, 2), (baum_welch, 2), (awd_lstm, 2), (baseline, 1), (baseline, 4)]
)
def test_a_signal_ends_a_check_too_and_resume_begins_with_it(
    tmp_path: Path, kind: Kind, check: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [event for event in kind(out=tmp_path / "whole") if isinstance(event, CheckEvent)]
    begun = []

    def interrupted(*arguments: Any, **options: Any) -> Iterator[tuple[int, float]]:
        begun.append(1)
        for window in scored_windows(*arguments, **options):
            if len(begun) == check:
                signal.raise_signal(signal.SIGINT)
            yield window

    with monkeypatch.context() as patch:
        patch.setattr("vlhmm.evaluate.scored_windows", interrupted)
        *first, last = kind(out=tmp_path / "parts")
    assert getattr(last, "reason", None) == "interrupted"
    assert [event for event in first if isinstance(event, CheckEvent)] == whole[: check - 1]
    *rest, last = kind(out=tmp_path / "parts", resume=True)
    assert getattr(last, "reason", None) == "finished"
    assert isinstance(rest[0], CheckEvent)
    assert [event for event in rest if isinstance(event, CheckEvent)] == whole[check - 1 :]
    same_state(tmp_path / "whole", tmp_path / "parts")
    logged = [[record["step"] for record in read_log(tmp_path / name)] for name in ("whole", "parts")]
    assert logged[0] == logged[1]


def test_a_run_interrupted_before_its_first_check_leaves_its_present_weights(tmp_path: Path) -> None:
    model = deepcopy(MODEL)
    settings = TrainSettings(epochs=2, batch_size=4, window=16, checks_per_epoch=1, ema=0.0)
    for event in training(model, CORPUS, settings, out=tmp_path / "run"):
        if isinstance(event, StepEvent):
            signal.raise_signal(signal.SIGINT)
    assert isinstance(event, Stopped)
    assert (event.reason, event.step, event.best_perplexity) == ("interrupted", 1, math.inf)
    saved = load_model(tmp_path / "run").model.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name]), name
    before = MODEL.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in saved.items())


@kinds
def test_time_that_is_up_lets_every_run_advance(tmp_path: Path, kind: Kind) -> None:
    list(kind(out=tmp_path / "whole"))
    *_, last = kind(out=tmp_path / "parts", max_seconds=0.0)
    runs = 1
    while getattr(last, "reason", None) == "time":
        *_, last = kind(out=tmp_path / "parts", resume=True, max_seconds=0.0)
        runs += 1
    assert getattr(last, "reason", None) == "finished"
    assert runs >= 4
    same_state(tmp_path / "whole", tmp_path / "parts")


@kinds
def test_saves_that_take_long_are_made_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """By a clock that only saves and checks move on."""

    def saves(seconds_of_a_save: float) -> int:
        now, saved = 0.0, 0

        def save_state(*_: object) -> None:
            nonlocal now, saved
            now += seconds_of_a_save
            saved += 1

        with monkeypatch.context() as patch:
            patch.setattr("vlhmm.training.trainer.time", SimpleNamespace(monotonic=lambda: now))
            patch.setattr(RunFolder, "save_state", save_state)
            for event in kind(out=tmp_path / str(seconds_of_a_save)):
                now += 60.0 * isinstance(event, CheckEvent)
        return saved

    # Every check, the last of which is the end; or the first and the end.
    assert saves(2.0) == 4
    assert saves(10.0) == 2


@kinds
def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path, kind: Kind) -> None:
    list(kind(out=tmp_path))
    before = (tmp_path / "training.safetensors").read_bytes()
    (last,) = kind(out=tmp_path, resume=True)
    assert getattr(last, "reason", None) == "finished"
    assert (tmp_path / "training.safetensors").read_bytes() == before


@kinds
def test_a_run_needs_a_folder_to_resume(kind: Kind) -> None:
    with pytest.raises(ValueError, match="give out="):
        next(kind(resume=True))


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        (gradient, "vlhmm.training.step"),
        (baseline, "vlhmm.baselines.adam"),
        (awd_lstm, "vlhmm.baselines.averaged_sgd"),
        (decoder, "vlhmm.distillation.decoder.training"),
    ],
)
def test_what_the_reduction_leaves_is_what_the_update_reads(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, module: str
) -> None:
    """With gradients set to 0 there no weight ever moves, and all checks give the same perplexity."""
    norms = list[float]()

    def to_zero(parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            norms.append(float(parameter.grad.norm()))
            parameter.grad.zero_()

    def perplexities() -> set[float]:
        return {event.valid_perplexity for event in kind() if isinstance(event, CheckEvent)}

    assert len(perplexities()) == 4
    monkeypatch.setattr(f"{module}.reduce_gradients", to_zero)
    assert len(perplexities()) == 1
    assert max(norms) > 0


def test_events_are_passed_on_up_to_the_closing_one() -> None:
    told = []

    def watching() -> Iterator[object]:
        last = yield from relay(iter([1, 2, "end"]), str)
        told.append(last)

    assert list(watching()) == [1, 2]
    assert told == ["end"]
    assert last_event([1, 2, "end"], str) == "end"
    with pytest.raises(AssertionError, match="the last event is always str"):
        last_event([1, 2], str)
