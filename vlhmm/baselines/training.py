"""The training of neural baselines: one loop for all, a generator of the same events as the HMM's."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
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
from vlhmm.baselines.settings import AWDLSTMSettings, BaselineSettings, LSTMSettings
from vlhmm.baselines.windows import RandomLengthWindows, ShuffledWindows, WindowsInOrder
from vlhmm.data import Corpus
from vlhmm.evaluate import evaluate
from vlhmm.training.run_folder import RunFolder
from vlhmm.training.step import part_of
from vlhmm.training.trainer import (
    LOG_STEPS,
    SAVE_SECONDS,
    VALID_STREAMS,
    CheckEvent,
    StepEvent,
    check_divergence,
    divergence_threshold,
    stop_signals,
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
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(Path(out), resume)) if out is not None else None
        stop_asked = stack.enter_context(stop_signals())
        run = _Run(settings, corpus, torch.device(device), seed, folder)
        if resume:
            run.restore()
        saved_at = time.monotonic()
        # A GPU works ahead of us; asking it for every step's loss would make it wait.
        loss_steps = LOG_STEPS if run.device.type == "cuda" else 1
        loss = math.nan

        while run.epoch < settings.epochs and not run.stepper.exhausted():
            for tokens in run.text.windows(run.epoch, run.window):
                run.train_step(tokens)
                if run.step % loss_steps == 0 or run.step == 1:
                    loss = run.loss()
                yield StepEvent(run.step, run.num_steps, loss, run.tokens_seen)

                if run.window in run.check_windows:
                    check = run.check()
                    yield check
                    if folder is not None:
                        seconds = round(time.monotonic() - begun, 3)
                        folder.log({"kind": "check", "seconds": seconds, **asdict(check)})
                    if run.stepper.exhausted():
                        break
                out_of_time = max_seconds is not None and time.monotonic() - begun >= max_seconds
                stopping = out_of_time or stop_asked.is_set()
                if stopping or time.monotonic() - saved_at > SAVE_SECONDS:
                    run.save()
                    saved_at = time.monotonic()
                if stopping and run.step < run.num_steps:
                    yield run.finished("interrupted" if stop_asked.is_set() else "time")
                    return
            if not run.stepper.exhausted():
                run.enter_epoch(run.epoch + 1)
        run.save()
        yield run.finished("flat" if run.stepper.exhausted() else "finished")


def seconds_per_epoch(
    settings: BaselineSettings, corpus: Corpus, *, device: torch.device, steps: int, max_seconds: float
) -> float:
    """Of training steps without checks, with nothing beside them: a fresh model reads the text's first windows."""
    run = _Run(settings, corpus, device, 0, None)
    windows = list(islice(run.text.windows(0, 0), steps))
    if device.type == "cuda":
        # Each length of window must have been met before it is captured.
        for tokens in windows * 3:
            run.train_step(tokens)
        torch.cuda.synchronize(device)
    begun, already = time.perf_counter(), run.tokens_seen
    for tokens in windows:
        run.train_step(tokens)
        if time.perf_counter() - begun > max_seconds:
            break
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) * len(corpus.train) / (run.tokens_seen - already)


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


class _Run:
    """Everything that changes during training, how one step changes it, and how it is saved."""

    def __init__(
        self, settings: BaselineSettings, corpus: Corpus, device: torch.device, seed: int, folder: RunFolder | None
    ) -> None:
        self.settings, self.corpus, self.device, self.folder = settings, corpus, device, folder
        self.text = _text_of(settings, corpus, seed)
        self.text.check()
        num_words = corpus.tokenizer.vocab_size
        self.model: Baseline = build_baseline(settings, num_words, torch.Generator().manual_seed(seed)).to(device)
        self.stepper: AdamStep | AveragedSGDStep = (
            AveragedSGDStep(self.model, seed) if isinstance(self.model, AWDLSTM) else AdamStep(self.model, seed)
        )
        self.num_steps = sum(self.text.count(epoch) for epoch in range(settings.epochs))
        self.step, self.tokens_seen = 0, 0
        self.enter_epoch(0)
        self.best_perplexity = math.inf
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.about: dict[str, Any] = {
            "kind": type(settings).__name__,
            "settings": asdict(settings),
            "seed": seed,
            "corpus": {"name": corpus.name, "hash": corpus.hash},
        }

    def train_step(self, tokens: Tensor) -> None:
        self.stepper(tokens, self.window == 0)
        self.window += 1
        self.step += 1
        self.tokens_seen += tokens.numel()

    def enter_epoch(self, epoch: int, window: int = 0) -> None:
        """Goes on with the epoch's window of that number; checks stand at equal distances, the last one at the end."""
        self.epoch, self.window = epoch, window
        self.num_windows = self.text.count(epoch)
        checks = self.settings.checks_per_epoch
        self.check_windows = {max(1, round(check * self.num_windows / checks)) for check in range(1, checks + 1)}

    def loss(self) -> float:
        """Of the last step, in nats per token; raises if training has broken down. Waits for a GPU to finish."""
        loss = float(self.stepper.loss)
        check_divergence(loss, divergence_threshold(self.model.num_words), self.step, self.num_steps)
        return loss

    def check(self) -> CheckEvent:
        """Scores the validation text, and keeps the weights if they are the best so far."""
        self.loss()
        with self.stepper.scored_weights():
            perplexity = evaluate(NeuralScorer(self.model), self.corpus.valid, streams=VALID_STREAMS).perplexity
            improved = perplexity < self.best_perplexity
            if improved:
                self.best_perplexity = perplexity
                self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.stepper.after_check(math.log(perplexity))
        return CheckEvent(self.step, self.num_steps, self.tokens_seen, perplexity, self.best_perplexity, improved)

    def finished(self, reason: Literal["finished", "flat", "time", "interrupted"]) -> TrainedBaseline:
        """Leaves the model with its best weights; a run stopped before its first check makes one."""
        if math.isinf(self.best_perplexity):
            self.check()
        self.model.load_state_dict(self.best_state)
        return TrainedBaseline(
            NeuralScorer(self.model),
            num_parameters(self.model),
            self.epoch + self.window / self.num_windows,
            self.best_perplexity,
            reason,
        )

    def save(self) -> None:
        if self.folder is None:
            return
        self.loss()
        tensors, values = self.stepper.state()
        tensors |= {f"best.{name}": value for name, value in self.best_state.items()}
        self.folder.save_state(
            tensors,
            {
                "about": self.about,
                "stepper": values,
                "epoch": self.epoch,
                "window": self.window,
                "step": self.step,
                "tokens_seen": self.tokens_seen,
                "best_perplexity": self.best_perplexity,
            },
        )

    def restore(self) -> None:
        """Goes on exactly where `save` left off."""
        assert self.folder is not None
        saved = self.folder.load_state()
        if saved is None:
            return
        tensors, values = saved
        self._check_same_run(values["about"])
        self.stepper.restore(tensors, values["stepper"])
        self.best_state = {name: value.to(self.device) for name, value in part_of(tensors, "best.").items()}
        self.enter_epoch(values["epoch"], values["window"])
        self.step, self.tokens_seen, self.best_perplexity = (
            values[name] for name in ("step", "tokens_seen", "best_perplexity")
        )
        self.folder.cut_log(self.step)

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
            raise ValueError(f"the run was begun with {'; '.join(changed)}: resume it with the same settings and text")
