"""What gradient ascent on an HMM's likelihood does with each batch: the `Task` that `training` gives to the loop."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlhmm._version import __version__
from vlhmm.data import Corpus
from vlhmm.data.merges import Merges
from vlhmm.data.windows import Epoch
from vlhmm.distributed import ALONE, SentTensors, World, barrier, first_does, sum_in_order
from vlhmm.evaluate import HMMScorer, evaluating
from vlhmm.inference.errors import raise_impossible
from vlhmm.models import Model
from vlhmm.ops import waiting
from vlhmm.precision import float32_products
from vlhmm.progress import Progress, result_of
from vlhmm.training.best import Best
from vlhmm.training.checkpoint import save_model
from vlhmm.training.joint_phase import JointPhase, joint_steps
from vlhmm.training.ranks import ScoredByRanks, begin_together, require_same_weights
from vlhmm.training.schedule import Plateau, planned_factor
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.training.trainer import (
    VALID_STREAMS,
    Reason,
    Stopped,
    check_divergence,
    diverged,
    divergence_threshold,
    loss_interval,
)


class GradientTask:
    """A `Task`: an HMM, its optimizer and its schedule."""

    check_times = ("seconds", "check_seconds")

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        settings: TrainSettings,
        joint: JointPhase | None = None,
        out: Path | None = None,
        before: Mapping[str, Any] | None = None,
        here: World = ALONE,
        local_steps: int = 1,
    ) -> None:
        if local_steps < 1:
            raise ValueError(f"local_steps is {local_steps}, but must be at least 1")
        if corpus.tokenizer.vocab_size != model.support.num_words:
            raise ValueError(
                f"the corpus has {corpus.tokenizer.vocab_size} words, but the model has {model.support.num_words}: build the model on this corpus"
            )
        self.model, self.corpus, self.settings, self.given, self.out = model, corpus, settings, joint, out
        # With one process local steps are ordinary steps.
        self.here, self.local_steps = here, local_steps if here.size > 1 else 1
        self.device = model.group_of_word.device
        if joint is not None and settings.subword_dropout:
            raise ValueError(
                f"subword_dropout is {settings.subword_dropout}, but states are given for the tokens as they are: leave it at 0"
            )
        self.merges = Merges.of(corpus.tokenizer, settings.subword_dropout)
        self.loss_steps = loss_interval(self.device)
        first = self._epoch(0)
        first.check()
        self.steps_per_epoch = first.num_windows
        self.num_steps = settings.epochs * self.steps_per_epoch
        self.joint_steps = 0 if joint is None else joint_steps(joint.tokens, settings, self.num_steps)
        self.check_steps = {
            max(1, round(check * self.steps_per_epoch / settings.checks_per_epoch))
            for check in range(1, settings.checks_per_epoch + 1)
        }
        self.about: dict[str, Any] = {
            "vlhmm": __version__,
            "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
            "train": asdict(settings),
            **(before or {}),
            # Independent of the number of ranks: the run may be resumed with another number.
            **({"local_steps": local_steps} if local_steps > 1 else {}),
        }
        if joint is not None:
            self.about["joint"] = {"steps": self.joint_steps, "about": joint.about}
        begin_together(model, settings.batch_size, self.about, here)
        self.stepper = Step(model, settings, here, self.local_steps > 1)
        self.step = 0
        self.plateau = Plateau(settings.patience, settings.decay)
        self.first_loss: float | None = None
        """Since resume."""
        self.best = Best(self.stepper.averaged.state_dict())

    def _epoch(self, number: int) -> Epoch:
        settings = self.settings
        return Epoch(
            self.corpus.train,
            settings.windows,
            settings.batch_size,
            settings.window,
            settings.seed,
            number,
            self.merges,
        )

    @property
    def tokens_seen(self) -> int:
        return self.step * self.settings.batch_size * self.settings.window

    @property
    def joint(self) -> bool:
        return 0 < self.step <= self.joint_steps

    @property
    def best_perplexity(self) -> float:
        return self.best.perplexity

    def learning_rate(self) -> float:
        settings = self.settings
        factor = planned_factor(settings.schedule, self.step, self.num_steps, settings.warmup, settings.final_rate)
        return settings.learning_rate * factor * self.plateau.factor

    def batches(self) -> Iterator[Tensor]:
        rows = self.stepper.rows
        while not self.finished():
            epoch, first_window = divmod(self.step, self.steps_per_epoch)
            for tokens in self._epoch(epoch).windows(first_window):
                yield tokens[rows.start : rows.stop]

    def make_step(self, tokens: Tensor) -> None:
        """One step of gradient ascent on log p(window | preceding tokens), or on log p(window, its states)."""
        epoch, within_epoch = divmod(self.step, self.steps_per_epoch)
        if within_epoch == 0:
            self.stepper.set_dropout(self.settings.dropout_in(epoch))
        fresh = self.settings.windows == "independent" or within_epoch == 0
        frozen = self.step < self.settings.freeze_embeddings * self.num_steps
        label = self.given.label if self.given is not None and self.step < self.joint_steps else None
        self.stepper(tokens, self.learning_rate(), fresh, frozen=frozen, label=label)
        self.step += 1
        if self.resumable():
            self.stepper.average_ranks()

    def finished(self) -> bool:
        """All steps are done, or the learning rate is so low that further steps have no effect."""
        rate = self.settings.learning_rate * self.plateau.factor
        return self.step >= self.num_steps or rate < self.settings.min_rate

    def resumable(self) -> bool:
        """All ranks have the same weights (no local steps since the last average)."""
        return self.step % self.local_steps == 0 or self.check_due() or self.step == self.num_steps

    def stoppable(self) -> bool:
        """Between two averages of local steps the ranks' weights differ, and no rank has those of the run."""
        return self.resumable()

    def loss(self) -> float:
        if self.given is not None and self.joint:
            self.given.label.require_sound()
        loss, norm = self.stepper.read_loss(), float(self.stepper.gradient_norm)
        if self.local_steps > 1:
            part = torch.tensor(loss * len(self.stepper.rows) / self.settings.batch_size, dtype=torch.float64)
            loss = float(sum_in_order(part, self.here, f"step {self.step}"))
        waiting.check(self.device)
        if loss == math.inf:
            rows = torch.arange(self.stepper.rows.start, self.stepper.rows.stop, device=self.device)
            raise_impossible(self.stepper.token_log_probs, 0, rows, f"train, step {self.step}")
            # The impossible token is in another rank's rows, which raises the error.
            barrier(self.here, f"step {self.step}")
        # The initial loss of wide random embeddings may be above the divergence threshold.
        if self.first_loss is None:
            self.first_loss = loss
        limit = divergence_threshold(self.model.support.num_words)
        if self.joint:
            limit += math.log(self.model.support.num_states)
        check_divergence(loss, max(limit, self.first_loss + 10), self.step, self.num_steps, self.out)
        if not math.isfinite(norm):
            raise diverged(f"the gradient's norm is {norm}", self.step, self.num_steps, self.out)
        return loss

    def _require_sound(self) -> None:
        """Raises unless the last loss and all weights are numbers: what is checked or saved must be good."""
        self.loss()
        for name, parameter in self.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise diverged(f"{name} is no longer finite", self.step, self.num_steps, self.out)
        require_same_weights(self.model, self.here, self.step)

    def step_record(self, losses: Sequence[float]) -> dict[str, Any]:
        underflow = self.stepper.underflow.total
        return {
            "kind": "step",
            "step": self.step,
            "tokens": self.tokens_seen,
            "perplexity": math.exp(math.fsum(losses) / len(losses)),
            "learning_rate": self.learning_rate(),
            **({"objective": "p(x, z)"} if self.joint else {}),
            **({"underflow_sequences": underflow} if underflow else {}),
        }

    def extra_events(self) -> Sequence[Stopped]:
        return ()

    def check_due(self) -> bool:
        within_epoch = (self.step - 1) % self.steps_per_epoch + 1
        return within_epoch in self.check_steps

    def evaluating(self) -> Generator[Progress, None, float]:
        self._require_sound()
        with torch.no_grad(), float32_products("highest", self.device):
            scorer = HMMScorer(self.stepper.averaged.tables().detach()).quick()
        # The validation text is read as the training text is; after a context as in a stream.
        cold = self.settings.windows == "independent" and not self.settings.context
        independent = self.settings.window if cold else 0
        streams = 1 if independent else VALID_STREAMS
        by_all = ScoredByRanks(scorer, self.here)
        scored = yield from evaluating(by_all, self.corpus.valid, streams=streams, independent=independent)
        perplexity = scored.perplexity
        self.best.offer(perplexity, self.stepper.averaged.state_dict())
        if self.settings.schedule == "plateau":
            self.plateau = self.plateau.after(math.log(perplexity))
        return perplexity

    def finish(self, reason: Reason) -> None:
        """Leaves the model with its best weights; a run stopped before its first check makes one, unless it was interrupted."""
        if math.isinf(self.best.perplexity):
            if reason == "interrupted":
                self.best.keep(self.stepper.averaged.state_dict())
            else:
                result_of(self.evaluating())
            self.save_best()
        self.model.load_state_dict(self.best.weights)

    def closing_event(self, stopped: Stopped) -> Stopped:
        self.stepper.read_loss()
        return replace(stopped, underflow_sequences=self.stepper.underflow.total)

    def save_best(self) -> None:
        out, weights = self.out, self.best.weights
        if out is not None and not self.best.is_saved:
            first_does(
                lambda: save_model(out, self.model, self.corpus.tokenizer, self.about, weights),
                self.here,
                f"writing to {out}",
            )
            self.best.is_saved = True

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._require_sound()
        return {**self.stepper.state(), **self.best.state()}, {
            "step": self.step,
            "plateau": asdict(self.plateau),
            "best_perplexity": self.best.perplexity,
            "underflow_sequences": self.stepper.underflow.total,
            "about": self.about,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        self._check_same_run(values["about"], values["step"])
        if isinstance(tensors, SentTensors):
            tensors = tensors.on(self.device)
        self.step = values["step"]
        self.plateau = replace(self.plateau, **values["plateau"])
        last_epoch = (self.step - 1) // self.steps_per_epoch
        self.stepper.restore(tensors, self.step, self.settings.dropout_in(last_epoch))
        self.stepper.underflow.restore(
            values.get("underflow_sequences", 0), self.step * self.settings.batch_size, self.here
        )
        self.best.restore(tensors, values["best_perplexity"], self.device)

    def _check_same_run(self, about: dict[str, Any], step: int) -> None:
        """Refuses to go on with other settings or another text."""
        if not isinstance(about.get("corpus"), dict) or not isinstance(about.get("train"), dict):
            raise ValueError(f"{self.out} holds a run of another kind: choose another folder")
        if about["corpus"]["hash"] != self.corpus.hash:
            raise ValueError(
                f"the run was started on corpus {about['corpus']['name']} ({about['corpus']['hash'][:12]}), not on "
                f"{self.corpus.name} ({self.corpus.short_hash}): resume it with the same text"
            )
        # A run of an earlier version has none of the settings that came later.
        before, now = {**asdict(TrainSettings()), **about["train"]}, asdict(self.settings)
        changed = [f"{name} = {before[name]!r}, not {now[name]!r}" for name in now if before[name] != now[name]]
        if changed:
            raise ValueError(f"the run was started with {'; '.join(changed)}: resume it with the same settings")
        local = about.get("local_steps", 1)
        if self.here.size > 1 and local != self.local_steps:
            raise ValueError(
                f"the run was started with local_steps = {local}, not {self.local_steps}: resume it with the same"
            )
        if local > 1:
            # One process has no local steps, and keeps the setting that the run was started with.
            self.about["local_steps"] = local
        else:
            self.about.pop("local_steps", None)
        given = about.get("joint")
        if self.given is None and given is not None and step >= given["steps"]:
            # Only steps on p(x) are left, which need no given states.
            self.about["joint"] = given
        if given != self.about.get("joint"):
            raise ValueError(
                "the run was started with other given states, or without them: resume it with the same ones"
            )
