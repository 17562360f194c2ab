"""The training of neural baselines: what they bring to the one loop."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vlhmm.baselines.adam import AdamStep
from vlhmm.baselines.averaged_sgd import AveragedSGDStep
from vlhmm.baselines.awd_lstm import AWDLSTM
from vlhmm.baselines.scorer import Baseline, NeuralScorer, build_baseline, num_parameters
from vlhmm.baselines.windows import RandomLengthWindows, ShuffledWindows, WindowsInOrder
from vlhmm.data import Corpus
from vlhmm.evaluate import evaluating
from vlhmm.progress import Progress, result_of
from vlhmm.training.baseline_settings import AWDLSTMSettings, BaselineSettings, LSTMSettings
from vlhmm.training.best import Best
from vlhmm.training.trainer import (
    SAVE_SECONDS,
    VALID_STREAMS,
    CheckEvent,
    Reason,
    StepEvent,
    Stopped,
    check_divergence,
    divergence_threshold,
    fit,
    loss_interval,
)


@dataclass(frozen=True)
class TrainedBaseline:
    """The last event: the model with the weights that were best on validation."""

    scorer: NeuralScorer
    num_parameters: int
    epochs: float
    """Passes over the training text that were made."""
    best_valid: float
    """Perplexity in VALID_STREAMS streams, as it was seen in training; `evaluate` gives the exact one."""
    reason: Literal["finished", "flat", "time", "interrupted"]
    """finished: all epochs; flat: the rate fell below its floor."""


BaselineEvent = StepEvent | CheckEvent | TrainedBaseline


def train_baseline(
    settings: BaselineSettings,
    corpus: Corpus,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    max_seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Iterator[BaselineEvent]:
    """Trains a baseline, an event at a time; the last one is `TrainedBaseline`.

    With `out` the state is kept in that folder. A run that was stopped or ran out of `max_seconds` goes on with `resume`
    to the same bits (on a CPU).
    """
    task = BaselineTask(settings, corpus, torch.device(device), seed, None if out is None else Path(out))
    yield from fit(task, resume=resume, max_seconds=max_seconds, save_seconds=SAVE_SECONDS)


def seconds_per_epoch(
    settings: BaselineSettings, corpus: Corpus, *, device: torch.device, steps: int, max_seconds: float
) -> float:
    """Of training steps without checks, with nothing beside them: a fresh model reads the text's first windows."""
    task = BaselineTask(settings, corpus, device, 0)
    windows = list(islice(task.text.windows(0, 0), steps))
    if device.type == "cuda":
        # Each length of window must have been met before it is captured.
        for tokens in windows * 3:
            task.make_step(tokens)
        torch.cuda.synchronize(device)
    begun, already = time.perf_counter(), task.tokens_seen
    for tokens in windows:
        task.make_step(tokens)
        if time.perf_counter() - begun > max_seconds:
            break
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) * len(corpus.train) / (task.tokens_seen - already)


def _text_of(
    settings: BaselineSettings, corpus: Corpus, seed: int
) -> RandomLengthWindows | WindowsInOrder | ShuffledWindows:
    size = (corpus.train, settings.batch_size, settings.window)
    match settings:
        case AWDLSTMSettings():
            return RandomLengthWindows(*size, seed)
        case LSTMSettings(shuffle=False):
            return WindowsInOrder(*size)
        case _:
            return ShuffledWindows(*size, seed)


class BaselineTask:
    """A `Task`: a neural baseline, its step with the schedule, and its place in the text."""

    check_times = ("seconds",)
    joint = False

    def __init__(
        self, settings: BaselineSettings, corpus: Corpus, device: torch.device, seed: int, out: Path | None = None
    ) -> None:
        self.settings, self.corpus, self.device, self.out = settings, corpus, device, out
        self.loss_steps = loss_interval(device)
        self.text = _text_of(settings, corpus, seed)
        self.text.check()
        num_words = corpus.tokenizer.vocab_size
        self.model: Baseline = build_baseline(settings, num_words, torch.Generator().manual_seed(seed)).to(device)
        self.stepper: AdamStep | AveragedSGDStep = (
            AveragedSGDStep(self.model, seed) if isinstance(self.model, AWDLSTM) else AdamStep(self.model, seed)
        )
        self.num_steps = sum(self.text.count(epoch) for epoch in range(settings.epochs))
        self.step, self.tokens_seen = 0, 0
        self._enter_epoch(0)
        self.best = Best(self.model.state_dict())
        self.about: dict[str, Any] = {
            "kind": type(settings).__name__,
            "settings": asdict(settings),
            "seed": seed,
            "corpus": {"name": corpus.name, "hash": corpus.hash},
        }

    @property
    def best_perplexity(self) -> float:
        return self.best.perplexity

    def batches(self) -> Iterator[Tensor]:
        while not self.finished():
            yield from self.text.windows(self.epoch, self.window)
            self._enter_epoch(self.epoch + 1)

    def _enter_epoch(self, epoch: int, window: int = 0) -> None:
        """Goes on with the epoch's window of that number; checks stand at equal distances, the last one at the end."""
        self.epoch, self.window = epoch, window
        self.num_windows = self.text.count(epoch)
        checks = self.settings.checks_per_epoch
        self.check_windows = {max(1, round(check * self.num_windows / checks)) for check in range(1, checks + 1)}

    def make_step(self, tokens: Tensor) -> None:
        self.stepper(tokens, self.window == 0)
        self.window += 1
        self.step += 1
        self.tokens_seen += tokens.numel()

    def loss(self) -> float:
        loss = float(self.stepper.loss)
        check_divergence(loss, divergence_threshold(self.model.num_words), self.step, self.num_steps)
        return loss

    def check_due(self) -> bool:
        return self.window in self.check_windows

    def finished(self) -> bool:
        """All epochs are over, or the rate is at its floor."""
        return self.step >= self.num_steps or self.stepper.exhausted()

    def resumable(self) -> bool:
        return True

    def stoppable(self) -> bool:
        return True

    def evaluating(self) -> Generator[Progress, None, float]:
        self.loss()
        with self.stepper.scored_weights():
            scoring = evaluating(NeuralScorer(self.model), self.corpus.valid, streams=VALID_STREAMS)
            perplexity = (yield from scoring).perplexity
            self.best.offer(perplexity, self.model.state_dict())
        self.stepper.after_check(math.log(perplexity))
        return perplexity

    def step_record(self, losses: Sequence[float]) -> None:
        """The log tells of checks alone."""

    def extra_events(self) -> Sequence[TrainedBaseline]:
        return ()

    def save_best(self) -> None:
        """A baseline has no model folder: its best weights are part of the state."""

    def finish(self, reason: Reason) -> None:
        """Leaves the model with its best weights; a run stopped before its first check makes one, unless it was interrupted."""
        if math.isinf(self.best.perplexity) and reason != "interrupted":
            result_of(self.evaluating())
        self.model.load_state_dict(self.best.weights)

    def closing_event(self, stopped: Stopped) -> TrainedBaseline:
        flat = stopped.reason == "finished" and self.stepper.exhausted()
        return TrainedBaseline(
            NeuralScorer(self.model),
            num_parameters(self.model),
            self.epoch + self.window / self.num_windows,
            self.best.perplexity,
            "flat" if flat else stopped.reason,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.loss()
        tensors, values = self.stepper.state()
        epoch, window = self.epoch, self.window
        if self.step == self.num_steps and not self.stepper.exhausted():
            # All epochs are read.
            epoch, window = self.settings.epochs, 0
        return {**tensors, **self.best.state()}, {
            "about": self.about,
            "stepper": values,
            "epoch": epoch,
            "window": window,
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "best_perplexity": self.best.perplexity,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        self._check_same_run(values["about"])
        self.stepper.restore(tensors, values["stepper"])
        self.best.restore(tensors, values["best_perplexity"], self.device)
        self._enter_epoch(values["epoch"], values["window"])
        self.step, self.tokens_seen = values["step"], values["tokens_seen"]

    def _check_same_run(self, about: dict[str, Any]) -> None:
        """Refuses to go on with another model, other settings or another text."""
        if about.get("kind") != self.about["kind"]:
            raise ValueError(
                f"the folder holds a run of {about.get('kind', 'an HMM')}, not of {self.about['kind']}: choose another one"
            )
        before, now = (
            {**found["settings"], "seed": found["seed"], "corpus": found["corpus"]["hash"][:12]}
            for found in (about, self.about)
        )
        changed = [f"{name} = {before.get(name)!r}, not {now[name]!r}" for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(
                f"the run was started with {'; '.join(changed)}: resume it with the same settings and text"
            )
