"""Gradient ascent on the exact marginal likelihood: the loop, from top to bottom."""

from __future__ import annotations

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
from torch import Tensor

from vlhmm._version import __version__
from vlhmm.checkpoint import save_model
from vlhmm.data import Corpus
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.inference.errors import raise_impossible
from vlhmm.joint_phase import JointPhase, joint_steps
from vlhmm.models import Model
from vlhmm.precision import float32_products
from vlhmm.run_folder import RunFolder
from vlhmm.schedule import Plateau, planned_factor
from vlhmm.settings import settings_from
from vlhmm.step import Step, part_of
from vlhmm.train_settings import TrainSettings


class DivergedError(RuntimeError):
    """Training has broken down; the last good checkpoint is kept."""

    def __init__(self, what: str, kept_in: Path | None = None) -> None:
        kept = "" if kept_in is None else f"; the last good checkpoint in {kept_in} is kept"
        super().__init__(what + kept)
        self.what = what
        """The same without the place of the checkpoint, which concerns this machine alone."""


def hopeless_loss(num_words: int) -> float:
    """Nats per token far worse than knowing nothing: more steps would only make numbers overflow."""
    return 3 * math.log(num_words) + 10


def require_hope(loss: float, num_words: int, step: int, num_steps: int) -> None:
    limit = hopeless_loss(num_words)
    if not loss <= limit:
        raise DivergedError(
            f"training diverged at step {step} of {num_steps}: the loss is {loss:.4g} nats per token, the limit "
            f"{limit:.4g}: try a smaller learning_rate"
        )


@dataclass(frozen=True)
class StepEvent:
    """One step was made."""

    step: int
    num_steps: int
    loss: float
    """Nats per token; on a GPU that of a step not long ago."""
    tokens: int
    """Seen so far."""
    joint: bool = False
    """The loss is that of p(x, z), states given."""


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
"""Checks during training score the validation text in so many warm-started streams, unless windows are independent."""
SAVE_SECONDS = 60.0
"""The state is saved at every check, and at least this often between two."""
LONG_SAVE, SAVING_SHARE = 3.0, 0.05
"""Saves that take more seconds than that take at most this part of the time, however many checks there are: those of gigabytes."""
LOG_STEPS = 20
"""Steps that one line of the log sums up."""


def train(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    joint: JointPhase | None = None,
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
    return run_to_end(training(model, corpus, settings, joint=joint, out=out, resume=resume, max_seconds=max_seconds))


def run_to_end(events: Iterator[Any]) -> Stopped:
    """The last event of a training that nobody watches."""
    for event in events:
        if isinstance(event, Stopped):
            return event
    raise AssertionError("training always ends with Stopped")


def training(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings,
    *,
    joint: JointPhase | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    save_seconds: float = 0.0,
    save_at_end: bool = True,
) -> Iterator[Event]:
    """The training loop, an event at a time; the last one is `Stopped`.

    `joint`: what comes before p(x). `save_seconds`: checks that come sooner after the last save do not save, which takes
    long for large models; nor does the end without `save_at_end`, where nobody will read it.
    """
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
        run = _Run(model, corpus, settings, folder, joint)
        if resume:
            run.restore()
        saved_at, save_took = time.monotonic(), 0.0
        # A GPU works ahead of us; asking it for every step's loss would make it wait.
        loss_steps = LOG_STEPS if run.device.type == "cuda" else 1
        loss, losses = math.nan, list[float]()

        while not run.finished():
            epoch, first_window = divmod(run.step, run.steps_per_epoch)
            for tokens in run.epoch(epoch).windows(first_window):
                run.train_step(tokens)
                check_due = run.check_due()
                if run.step % loss_steps == 0 or run.step == 1 or check_due:
                    loss = run.loss()
                    losses.append(loss)
                yield StepEvent(run.step, run.num_steps, loss, run.tokens_seen, run.last_was_joint)

                # Before a check too: whoever compares the two finds both, however short the training is.
                if run.step % LOG_STEPS == 0 or check_due:
                    if folder is not None:
                        folder.log(run.step_record(math.fsum(losses) / len(losses)))
                    losses.clear()
                if check_due:
                    check_begun = time.monotonic()
                    check = run.check()
                    now = time.monotonic()
                    yield check
                    if folder is not None:
                        times = {"seconds": round(now - begun, 3), "check_seconds": round(now - check_begun, 3)}
                        folder.log({"kind": "check", **times, **asdict(check)})
                out_of_time = max_seconds is not None and time.monotonic() - begun >= max_seconds
                stopping = out_of_time or stop_asked.is_set()
                now = time.monotonic()
                pause = save_took / SAVING_SHARE if save_took > LONG_SAVE else 0.0
                save_due = now - saved_at >= max(save_seconds if check_due else SAVE_SECONDS, pause)
                if run.finished():
                    if save_at_end:
                        run.save()
                    break
                if stopping or save_due:
                    run.save()
                    saved_at = time.monotonic()
                    save_took = saved_at - now
                if stopping:
                    run.finish()
                    reason: Literal["time", "interrupted"] = "interrupted" if stop_asked.is_set() else "time"
                    yield Stopped(reason, run.step, run.num_steps, run.best_perplexity, time.monotonic() - begun)
                    return
        run.finish()
        yield Stopped("finished", run.step, run.num_steps, run.best_perplexity, time.monotonic() - begun)


class _Run:
    """Everything that changes during training, how one step changes it, and how it is saved."""

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        settings: TrainSettings,
        folder: RunFolder | None,
        joint: JointPhase | None = None,
    ) -> None:
        self.model, self.corpus, self.settings, self.folder, self.joint = model, corpus, settings, folder, joint
        self.device = model.group_of_word.device
        first = self.epoch(0)
        first.check()
        self.steps_per_epoch = first.num_windows
        self.num_steps = settings.epochs * self.steps_per_epoch
        self.joint_steps = 0 if joint is None else joint_steps(joint.tokens, settings, self.num_steps)
        self.check_steps = {
            max(1, round(check * self.steps_per_epoch / settings.checks_per_epoch))
            for check in range(1, settings.checks_per_epoch + 1)
        }
        self.about = {
            "vlhmm": __version__,
            "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
            "train": asdict(settings),
        }
        if joint is not None:
            self.about["joint"] = {"steps": self.joint_steps, "about": joint.about}
        self.stepper = Step(model, settings)
        self.step = 0
        self.plateau = Plateau(settings.patience, settings.decay)
        self.first_loss: float | None = None
        """Of this sitting."""
        self.best_perplexity = math.inf
        self.best_is_saved = True
        self.best_state = {name: value.detach().clone() for name, value in self.stepper.averaged.state_dict().items()}

    def finished(self) -> bool:
        """All steps are made, or the rate is so low that more of them change nothing."""
        rate = self.settings.learning_rate * self.plateau.factor
        return self.step >= self.num_steps or rate < self.settings.min_rate

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

    def train_step(self, tokens: Tensor) -> None:
        """One step up the gradient of log p(window | what came before it), or of log p(window, its states)."""
        epoch, within_epoch = divmod(self.step, self.steps_per_epoch)
        if within_epoch == 0:
            self.stepper.set_dropout(self.settings.dropout_in(epoch))
        fresh = self.settings.windows == "independent" or within_epoch == 0
        frozen = self.step < self.settings.freeze_embeddings * self.num_steps
        label = self.joint.label if self.joint is not None and self.step < self.joint_steps else None
        self.stepper(tokens, self.learning_rate(), fresh, frozen=frozen, label=label)
        self.step += 1

    @property
    def last_was_joint(self) -> bool:
        return 0 < self.step <= self.joint_steps

    def loss(self) -> float:
        """Of the last step, in nats per token; raises if training has broken down. Waits for a GPU to finish."""
        if self.joint is not None and self.last_was_joint:
            self.joint.label.require_sound()
        loss, norm = float(self.stepper.loss), float(self.stepper.gradient_norm)
        if loss == math.inf:
            rows = torch.arange(self.settings.batch_size, device=self.device)
            raise_impossible(self.stepper.token_log_probs, 0, rows, f"train, step {self.step}")
        # Wide random embeddings may begin worse than that.
        if self.first_loss is None:
            self.first_loss = loss
        limit = hopeless_loss(self.model.support.num_words)
        if self.last_was_joint:
            limit += math.log(self.model.support.num_states)
        limit = max(limit, self.first_loss + 10)
        if not loss <= limit:
            raise self._diverged(f"the loss is {loss:.4g} nats per token, the limit {limit:.4g}")
        if not math.isfinite(norm):
            raise self._diverged(f"the gradient's norm is {norm}")
        return loss

    def require_sound(self) -> None:
        """Raises unless the last loss and all weights are numbers: what is checked or saved must be good."""
        self.loss()
        for name, parameter in self.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise self._diverged(f"{name} is no longer finite")

    def _diverged(self, symptom: str) -> DivergedError:
        return DivergedError(
            f"training diverged at step {self.step} of {self.num_steps}: {symptom}: try a smaller learning_rate",
            self.folder.path if self.folder else None,
        )

    def step_record(self, mean_loss: float) -> dict[str, Any]:
        return {
            "kind": "step",
            "step": self.step,
            "tokens": self.tokens_seen,
            "perplexity": math.exp(mean_loss),
            "learning_rate": self.learning_rate(),
            **({"objective": "p(x, z)"} if self.last_was_joint else {}),
        }

    def check_due(self) -> bool:
        within_epoch = (self.step - 1) % self.steps_per_epoch + 1
        return within_epoch in self.check_steps

    @torch.no_grad()
    def check(self) -> CheckEvent:
        """Scores the validation text, and keeps the weights if they are the best so far."""
        self.require_sound()
        with float32_products("highest", self.stepper.loss.device):
            scorer = HMMScorer(self.stepper.averaged.tables().detach()).quick()
        perplexity = self._perplexity(scorer)
        improved = perplexity < self.best_perplexity
        if improved:
            self.best_perplexity = perplexity
            self.best_state = {
                name: value.detach().clone() for name, value in self.stepper.averaged.state_dict().items()
            }
            self.best_is_saved = False
        if self.settings.schedule == "plateau":
            self.plateau = self.plateau.after(math.log(perplexity))
        return CheckEvent(self.step, self.num_steps, self.tokens_seen, perplexity, self.best_perplexity, improved)

    def _perplexity(self, scorer: HMMScorer) -> float:
        """Of the validation text, read as the training text is."""
        if self.settings.windows == "independent":
            return evaluate(scorer, self.corpus.valid, independent=self.settings.window).perplexity
        return evaluate(scorer, self.corpus.valid, streams=VALID_STREAMS).perplexity

    def finish(self) -> None:
        """Leaves the model with its best weights; a run stopped before its first check makes one."""
        if math.isinf(self.best_perplexity):
            self.check()
            self._save_best()
        self.model.load_state_dict(self.best_state)

    def save(self) -> None:
        if self.folder is None:
            return
        # First: the best weights were sound when they were checked, whatever has become of the present ones.
        self._save_best()
        self.require_sound()
        tensors = self.stepper.state()
        for name, value in self.best_state.items():
            tensors[f"best.{name}"] = value
        values = {
            "step": self.step,
            "plateau": asdict(self.plateau),
            "best_perplexity": self.best_perplexity,
            "about": self.about,
        }
        self.folder.save_state(tensors, values)

    def _save_best(self) -> None:
        if self.folder is not None and not self.best_is_saved:
            save_model(self.folder.path, self.model, self.corpus.tokenizer, self.about, self.best_state)
            self.best_is_saved = True

    def restore(self) -> None:
        """Goes on exactly where `save` left off."""
        assert self.folder is not None
        saved = self.folder.load_state()
        if saved is None:
            return
        tensors, values = saved
        self._check_same_run(values["about"], values["step"])
        self.step = values["step"]
        self.plateau = replace(self.plateau, **values["plateau"])
        self.best_perplexity = values["best_perplexity"]
        last_epoch = (self.step - 1) // self.steps_per_epoch
        self.stepper.restore(tensors, self.step, self.settings.dropout_in(last_epoch))
        self.best_state = {name: value.to(self.device) for name, value in part_of(tensors, "best.").items()}
        self.folder.cut_log(self.step)

    def _check_same_run(self, about: dict[str, Any], step: int) -> None:
        """Refuses to go on with other settings or another text."""
        if not isinstance(about.get("corpus"), dict) or not isinstance(about.get("train"), dict):
            raise ValueError(f"{self.folder and self.folder.path} holds a run of another kind: choose another folder")
        if about["corpus"]["hash"] != self.corpus.hash:
            raise ValueError(
                f"the run was begun on corpus {about['corpus']['name']} ({about['corpus']['hash'][:12]}), not on "
                f"{self.corpus.name} ({self.corpus.short_hash}): resume it with the same text"
            )
        before, now = about["train"], asdict(self.settings)
        changed = [f"{name} = {before.get(name)!r}, not {now[name]!r}" for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(f"the run was begun with {'; '.join(changed)}: resume it with the same settings")
        given = about.get("joint")
        if self.joint is None and given is not None and step >= given["steps"]:
            # All that is left is p(x), which asks for no states.
            self.about["joint"] = given
        if given != self.about.get("joint"):
            raise ValueError("the run was begun with other given states, or without them: resume it with the same ones")


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
