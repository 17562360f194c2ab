"""Gradient ascent on the exact marginal likelihood: the loop, from top to bottom."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm import __version__
from vlhmm.checkpoint import save_model
from vlhmm.data import Corpus
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, Boundary
from vlhmm.inference.score import score
from vlhmm.models import Kept, Model
from vlhmm.run_folder import RunFolder
from vlhmm.schedule import Plateau, ScheduleKind, planned_factor
from vlhmm.settings import settings_from
from vlhmm.tables import Belief


@dataclass(frozen=True)
class TrainSettings:
    learning_rate: float = 1e-2
    """The largest one, after warm-up."""
    schedule: ScheduleKind = "cosine"
    """cosine: down to final_rate of it; plateau: divided by decay when validation stops falling; constant."""
    warmup: float = 0.02
    """The part of all steps over which the rate rises from 0."""
    final_rate: float = 0.02
    """cosine: what is left of the rate at the end."""
    patience: int = 8
    """plateau: checks without a better validation loss before the rate falls."""
    decay: float = 4.0
    """plateau: what the rate is divided by."""
    epochs: int = 20
    batch_size: int = 16
    """Windows side by side."""
    window: int = 32
    """Tokens of a window."""
    windows: Literal["carried", "independent"] = "carried"
    """carried: each window goes on from the last one's belief; independent: each begins from the start distribution."""
    state_dropout: float = 0.5
    """The part of each block's states that a step leaves out."""
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip: float = 5.0
    """The largest norm of the gradient; 0: not clipped."""
    ema: float = 0.0
    """Decay of the running average of weights that is evaluated and saved; 0: the weights themselves."""
    checks_per_epoch: int = 4
    """How often validation perplexity is taken."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "window", "checks_per_epoch", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("learning_rate", "decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and above 0")
        for name in ("state_dropout", "ema", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
        for name in ("warmup", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be between 0 and 1")
        for name in ("weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")


class DivergedError(RuntimeError):
    """Training has broken down; the last good checkpoint is kept."""


@dataclass(frozen=True)
class StepEvent:
    """One step was made."""

    step: int
    num_steps: int
    loss: float
    tokens: int
    """Seen so far."""


@dataclass(frozen=True)
class CheckEvent:
    """The validation text was scored."""

    step: int
    num_steps: int
    tokens: int
    valid_perplexity: float
    best_perplexity: float
    improved: bool


@dataclass(frozen=True)
class Stopped:
    """Training is over, by its plan or before."""

    reason: Literal["finished", "time", "interrupted"]
    step: int
    num_steps: int
    best_perplexity: float
    seconds: float


Event = StepEvent | CheckEvent | Stopped

VALID_STREAMS = 32
"""Checks during training score the validation text in so many warm-started streams."""
SAVE_SECONDS = 60.0
"""The state is saved at every check, and at least this often between two."""
LOG_STEPS = 20
"""Steps that one line of the log sums up."""


def train(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    **changes: Any,
) -> Stopped:
    """Trains `model` in place, on its own device, and leaves it with the weights that were best on validation.

    `changes` are settings by name. With `out` the run can be stopped at any time and resumed to bit-identical weights
    (on a CPU); whoever wants to watch iterates over `training` instead.
    """
    settings = settings_from(TrainSettings, {**asdict(settings or TrainSettings()), **changes})
    for event in training(model, corpus, settings, out=out, resume=resume, max_seconds=max_seconds):
        if isinstance(event, Stopped):
            return event
    raise AssertionError("training always ends with Stopped")


def training(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
) -> Iterator[Event]:
    """The training loop, an event at a time; the last one is `Stopped`."""
    if corpus.tokenizer.vocab_size != model.support.num_words:
        raise ValueError(
            f"the corpus has {corpus.tokenizer.vocab_size} words, but the model has {model.support.num_words}: build the model on this corpus"
        )
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(Path(out), resume)) if out is not None else None
        stop_asked = stack.enter_context(stop_signals())
        run = _Run(model, corpus, settings, folder)
        if resume:
            run.restore()
        saved_at = time.monotonic()
        log_loss, log_count = 0.0, 0

        while run.step < run.num_steps:
            epoch, first_window = divmod(run.step, run.steps_per_epoch)
            for tokens in run.epoch(epoch).windows(first_window):
                loss = run.train_step(tokens)
                log_loss, log_count = log_loss + loss, log_count + 1
                yield StepEvent(run.step, run.num_steps, loss, run.tokens_seen)

                if run.step % LOG_STEPS == 0 and folder is not None:
                    perplexity = math.exp(log_loss / log_count)
                    folder.log(
                        {
                            "kind": "step",
                            "step": run.step,
                            "tokens": run.tokens_seen,
                            "perplexity": perplexity,
                            "learning_rate": run.learning_rate(),
                        }
                    )
                    log_loss, log_count = 0.0, 0
                check_due = run.check_due()
                if check_due:
                    check = run.check()
                    yield check
                    if folder is not None:
                        folder.log({"kind": "check", "seconds": round(time.monotonic() - begun, 3), **asdict(check)})
                out_of_time = max_seconds is not None and time.monotonic() - begun >= max_seconds
                stopping = out_of_time or stop_asked.is_set()
                if check_due or stopping or time.monotonic() - saved_at > SAVE_SECONDS:
                    run.save()
                    saved_at = time.monotonic()
                if stopping and run.step < run.num_steps:
                    run.finish()
                    reason: Literal["time", "interrupted"] = "interrupted" if stop_asked.is_set() else "time"
                    yield Stopped(reason, run.step, run.num_steps, run.best_perplexity, time.monotonic() - begun)
                    return
        run.finish()
        yield Stopped("finished", run.step, run.num_steps, run.best_perplexity, time.monotonic() - begun)


class _Run:
    """Everything that changes during training, how one step changes it, and how it is saved."""

    def __init__(self, model: Model, corpus: Corpus, settings: TrainSettings, folder: RunFolder | None) -> None:
        self.model, self.corpus, self.settings, self.folder = model, corpus, settings, folder
        self.device = model.group_of_word.device
        first = self.epoch(0)
        first.check()
        self.steps_per_epoch = first.num_windows
        self.num_steps = settings.epochs * self.steps_per_epoch
        self.check_steps = {
            max(1, round(check * self.steps_per_epoch / settings.checks_per_epoch))
            for check in range(1, settings.checks_per_epoch + 1)
        }
        self.about = {
            "vlhmm": __version__,
            "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
            "train": asdict(settings),
        }
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=self.device.type == "cuda",
        )
        # One generator, on the CPU, for the dropout of every process: all keep the same states.
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.averaged = copy.deepcopy(model).requires_grad_(False) if settings.ema else model
        self.step = 0
        self.belief: Belief | None = None
        self.kept: Kept | None = None
        self.plateau = Plateau(settings.patience, settings.decay)
        self.best_perplexity = math.inf
        self.best_state = {name: value.detach().clone() for name, value in self.averaged.state_dict().items()}

    @property
    def tokens_seen(self) -> int:
        return self.step * self.settings.batch_size * self.settings.window

    def epoch(self, number: int) -> Epoch:
        settings = self.settings
        return Epoch(self.corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, number)

    def learning_rate(self) -> float:
        settings = self.settings
        factor = planned_factor(settings.schedule, self.step, self.num_steps, settings.warmup, settings.final_rate)
        return settings.learning_rate * factor * self.plateau.factor

    def train_step(self, tokens: Tensor) -> float:
        """One step up the gradient of log p(window | what came before it); the loss in nats per token."""
        settings = self.settings
        if settings.windows == "independent" or self.step % self.steps_per_epoch == 0:
            self.belief = None
        kept = self.model.kept_after_dropout(settings.state_dropout, self.generator)
        previous = self.kept if self.belief is not None else None
        tables, transition = self.model(previous, kept)
        boundary = None
        if previous is not None and transition is not None:
            boundary = Boundary(self.model.support_of(previous), transition)
        tokens = tokens.to(self.device)
        batch = Batch(tokens, torch.full((tokens.shape[0],), tokens.shape[1], device=self.device))
        scored = score(tables, batch, self.belief, boundary)
        loss = -scored.token_log_probs.sum() / tokens.numel()
        self._check_loss(loss.detach(), scored.token_log_probs.detach())

        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, settings.clip or math.inf)
        if not bool(norm.isfinite()):
            raise DivergedError(self._broken(f"the gradient's norm is {float(norm)}"))
        self.optimizer.step()
        self.step += 1
        self._average()
        self.belief = Belief(scored.belief.token, scored.belief.log_probs.detach())
        self.kept = kept
        return float(loss.detach())

    def _check_loss(self, loss: Float[Tensor, ""], token_log_probs: Float[Tensor, "B T"]) -> None:
        if bool(loss.isposinf()):
            rows = torch.arange(token_log_probs.shape[0], device=token_log_probs.device)
            raise_impossible(token_log_probs, 0, rows, f"train, step {self.step + 1}")
        # Far worse than knowing nothing: more steps would only make numbers overflow.
        limit = 3 * math.log(self.model.support.num_words) + 10
        if not float(loss) <= limit:
            raise DivergedError(self._broken(f"the loss is {float(loss):.4g} nats per token, the limit {limit:.4g}"))

    def _broken(self, symptom: str) -> str:
        kept = f"; the last good checkpoint in {self.folder.path} is kept" if self.folder else ""
        return f"training diverged at step {self.step + 1} of {self.num_steps}: {symptom}{kept}: try a smaller learning_rate"

    @torch.no_grad()
    def _average(self) -> None:
        if not self.settings.ema:
            return
        # Early on the average is short, so that it does not remember the random start.
        decay = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        for average, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
            average.lerp_(parameter, 1 - decay)

    def check_due(self) -> bool:
        within_epoch = (self.step - 1) % self.steps_per_epoch + 1
        return within_epoch in self.check_steps

    @torch.no_grad()
    def check(self) -> CheckEvent:
        """Scores the validation text, and keeps the weights if they are the best so far."""
        scorer = HMMScorer(self.averaged.tables())
        perplexity = evaluate(scorer, self.corpus.valid, streams=VALID_STREAMS).perplexity
        improved = perplexity < self.best_perplexity
        if improved:
            self.best_perplexity = perplexity
            self.best_state = {name: value.detach().clone() for name, value in self.averaged.state_dict().items()}
            if self.folder is not None:
                save_model(self.folder.path, self.model, self.corpus.tokenizer, self.about, self.best_state)
        if self.settings.schedule == "plateau":
            self.plateau = self.plateau.after(math.log(perplexity))
        return CheckEvent(self.step, self.num_steps, self.tokens_seen, perplexity, self.best_perplexity, improved)

    def finish(self) -> None:
        """Leaves the model with its best weights; a run stopped before its first check makes one."""
        if math.isinf(self.best_perplexity):
            self.check()
        self.model.load_state_dict(self.best_state)

    def save(self) -> None:
        if self.folder is None:
            return
        tensors: dict[str, Tensor] = {"generator": self.generator.get_state()}
        for name, value in self.model.state_dict().items():
            tensors[f"model.{name}"] = value
        if self.settings.ema:
            for name, value in self.averaged.state_dict().items():
                tensors[f"averaged.{name}"] = value
        for name, value in self.best_state.items():
            tensors[f"best.{name}"] = value
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{index}.{name}"] = value
        if self.belief is not None:
            tensors["belief.token"] = self.belief.token
            tensors["belief.log_probs"] = self.belief.log_probs
        if self.kept is not None:
            tensors["kept"] = self.kept.states
        values = {
            "step": self.step,
            "plateau": asdict(self.plateau),
            "best_perplexity": self.best_perplexity,
            "about": self.about,
        }
        self.folder.save_state(tensors, values)

    def restore(self) -> None:
        """Goes on exactly where `save` left off."""
        assert self.folder is not None
        saved = self.folder.load_state()
        if saved is None:
            return
        tensors, values = saved
        self._check_same_run(values["about"])
        self.step = values["step"]
        self.plateau = replace(self.plateau, **values["plateau"])
        self.best_perplexity = values["best_perplexity"]
        self.generator.set_state(tensors["generator"])
        self.model.load_state_dict(_part(tensors, "model."))
        if self.settings.ema:
            self.averaged.load_state_dict(_part(tensors, "averaged."))
        self.best_state = {name: value.to(self.device) for name, value in _part(tensors, "best.").items()}
        optimizer = self.optimizer.state_dict()
        for name, value in _part(tensors, "optimizer.").items():
            index, key = name.split(".")
            optimizer["state"].setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        if "belief.token" in tensors:
            self.belief = Belief(tensors["belief.token"].to(self.device), tensors["belief.log_probs"].to(self.device))
        if "kept" in tensors:
            self.kept = Kept(tensors["kept"].to(self.device))
        self.folder.cut_log(self.step)

    def _check_same_run(self, about: dict[str, Any]) -> None:
        """Refuses to go on with other settings or another text."""
        if about["corpus"]["hash"] != self.corpus.hash:
            raise ValueError(
                f"the run was begun on corpus {about['corpus']['name']} ({about['corpus']['hash'][:12]}), not on "
                f"{self.corpus.name} ({self.corpus.short_hash}): resume it with the same text"
            )
        before, now = about["train"], asdict(self.settings)
        changed = [f"{name} = {before.get(name)!r}, not {now[name]!r}" for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(f"the run was begun with {'; '.join(changed)}: resume it with the same settings")


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and a polite kill ask the loop to stop after its step; a second Ctrl-C ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
