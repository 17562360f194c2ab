"""Baum-Welch over a corpus, full or in mini-batches, for models whose tables are free parameters."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlhmm._version import __version__
from vlhmm.data import Corpus
from vlhmm.data.windows import Epoch
from vlhmm.distributed import ALONE, World, first_does, joined, shard, sum_in_order
from vlhmm.evaluate import HMMScorer, evaluating
from vlhmm.inference.fit import maximized, mixed, total_counts
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts
from vlhmm.models import Model
from vlhmm.models.from_tables import set_tables
from vlhmm.precision import Numerics
from vlhmm.progress import Progress
from vlhmm.records import mapped
from vlhmm.settings import settings_from
from vlhmm.tables import Tables
from vlhmm.training.best import Best
from vlhmm.training.checkpoint import save_model
from vlhmm.training.ranks import ScoredByRanks, begin_together, require_same_weights
from vlhmm.training.run_folder import RunFolder, path_of
from vlhmm.training.saved_state import part_of
from vlhmm.training.trainer import VALID_STREAMS, DivergedError, Event, Reason, Stopped, fit, run_to_end


@dataclass(frozen=True)
class EMSettings:
    iterations: int = 20
    """Passes over the text."""
    batches_per_step: int = 0
    """Batches counted before the tables change; 0: all of them, which is full-batch Baum-Welch."""
    rate: float = 0.1
    """In mini-batches: theta <- rate * new + (1 - rate) * theta."""
    pseudocount: float = 1e-3
    """Added to every count, so that no word becomes impossible; 0: plain maximum likelihood."""
    batch_size: int = 64
    window: int = 64
    """The text is cut into independent windows of so many tokens, each begun from the start distribution."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("batches_per_step", "pseudocount"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}, but must be above 0 and at most 1")


def em(
    model: Model,
    corpus: Corpus,
    settings: EMSettings | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    **changes: Any,
) -> Stopped:
    """Trains a scalar `model` in place by Baum-Welch and leaves it with its best tables; the arguments are those of `train`.

    Under torchrun each rank counts its rows of every batch."""
    settings = settings_from(EMSettings, {**asdict(settings or EMSettings()), **changes})
    with joined() as here:
        return run_to_end(
            em_training(model, corpus, settings, out=out, resume=resume, max_seconds=max_seconds, here=here)
        )


def em_training(
    model: Model,
    corpus: Corpus,
    settings: EMSettings,
    *,
    out: str | Path | RunFolder | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    here: World = ALONE,
) -> Generator[Event, None, None]:
    """The passes of Baum-Welch, an event at a time: a step is a batch counted, its loss that of the pass so far; a check ends
    each pass. The last event is `Stopped`."""
    task = BaumWelchTask(model, corpus, settings, path_of(out), here)
    folder = out if isinstance(out, RunFolder) else None
    yield from fit(task, folder=folder, resume=resume, max_seconds=max_seconds, here=here)


def em_steps(settings: EMSettings, corpus: Corpus) -> int:
    """Batches that are counted in all passes."""
    return settings.iterations * _epoch(corpus, settings, 0).num_windows


def _epoch(corpus: Corpus, settings: EMSettings, number: int) -> Epoch:
    epoch = Epoch(corpus.train, "independent", settings.batch_size, settings.window, settings.seed, number)
    epoch.check()
    return epoch


class BaumWelchTask:
    """A `Task` whose step is a batch counted. It is saved between passes: one that was not finished is made again."""

    check_times = ("seconds",)
    joint = False
    loss_steps = 1

    def __init__(
        self, model: Model, corpus: Corpus, settings: EMSettings, out: Path | None = None, here: World = ALONE
    ) -> None:
        if model.settings.parameterization != "scalar":
            raise ValueError(
                f"Baum-Welch needs free tables, but the model is {model.settings.parameterization!r}: use scalar_hmm, or train"
            )
        if model.settings.emission_floor:
            raise ValueError(
                f"emission_floor is {model.settings.emission_floor}, but Baum-Welch sets emissions as they are: use 0, or train"
            )
        self.model, self.corpus, self.settings, self.out, self.here = model, corpus, settings, out, here
        self.num_steps = em_steps(settings, corpus)
        self.num_batches = self.num_steps // settings.iterations
        """Of a pass."""
        self.about = {
            "vlhmm": __version__,
            "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
            "em": asdict(settings),
        }
        begin_together(model, settings.batch_size, self.about, here)
        self.step = 0
        self.best = Best(model.state_dict())
        self._tables: Tables | None = None
        """What batches are counted with; None: to be made anew."""
        self._counts: Counts | None = None
        """Since the tables changed, in the rows of this rank."""
        self._log_prob = 0.0
        """Of the pass so far, each batch under the tables it was counted with."""

    @property
    def tokens_seen(self) -> int:
        return self.step * self.settings.batch_size * self.settings.window

    @property
    def best_perplexity(self) -> float:
        return self.best.perplexity

    def batches(self) -> Iterator[Tensor]:
        while not self.finished():
            # Full-batch Baum-Welch uses the same windows in every pass: only then does the likelihood increase monotonically.
            iteration = self.step // self.num_batches + 1
            yield from _epoch(self.corpus, self.settings, iteration if self.settings.batches_per_step else 0).windows()

    def make_step(self, tokens: Tensor) -> None:
        """Counts a batch; the tables change after `batches_per_step` of them, and at the end of a pass."""
        settings, device = self.settings, self.model.group_of_word.device
        first = self.step % self.num_batches
        if first == 0:
            self._tables, self._counts, self._log_prob = None, None, 0.0
        numerics = Numerics.training(self.model.settings.precision)
        tables = self._tables = self._tables or self.model.tables(numerics=numerics).detach()
        own = shard(range(settings.batch_size), self.here)
        tokens = tokens[own.start : own.stop]
        batch = Batch(tokens.to(device), torch.full((tokens.shape[0],), tokens.shape[1], device=device))
        rows = shard(range(first * settings.batch_size, (first + 1) * settings.batch_size), self.here)
        part, part_log_prob = total_counts(tables, [(rows, batch)])
        self._counts = part if self._counts is None else self._counts + part
        self.step += 1
        what = f"step {self.step}"
        self._log_prob += float(sum_in_order(torch.tensor(part_log_prob, dtype=torch.float64), self.here, what))
        if (first + 1) % (settings.batches_per_step or self.num_batches) == 0 or self.resumable():
            counts = mapped(self._counts, lambda values: sum_in_order(values, self.here, what))
            new = maximized(counts, tables, settings.pseudocount)
            set_tables(self.model, mixed(new, tables, settings.rate) if settings.batches_per_step else new)
            self._tables, self._counts = None, None

    def loss(self) -> float:
        """Of the pass so far."""
        number = (self.step - 1) % self.num_batches + 1
        loss = -self._log_prob / (number * self.settings.batch_size * self.settings.window)
        if not math.isfinite(loss):
            iteration = (self.step - 1) // self.num_batches + 1
            raise DivergedError(f"Baum-Welch diverged in iteration {iteration}: the loss is {loss}")
        return loss

    def check_due(self) -> bool:
        return self.resumable()

    def finished(self) -> bool:
        return self.step >= self.num_steps

    def resumable(self) -> bool:
        """Between two passes."""
        return self.step % self.num_batches == 0

    def stoppable(self) -> bool:
        """A pass may take hours, so it may be interrupted; its counts so far are discarded."""
        return True

    def evaluating(self) -> Generator[Progress, None, float]:
        require_same_weights(self.model, self.here, self.step)
        scorer = ScoredByRanks(HMMScorer(self.model.tables().detach()).quick(), self.here)
        perplexity = (yield from evaluating(scorer, self.corpus.valid, streams=VALID_STREAMS)).perplexity
        self.best.offer(perplexity, self.model.state_dict())
        return perplexity

    def step_record(self, losses: Sequence[float]) -> dict[str, Any] | None:
        """One a pass."""
        if not self.resumable():
            return None
        perplexity = math.exp(losses[-1])
        return {"kind": "step", "step": self.step, "tokens": self.tokens_seen, "perplexity": perplexity}

    def extra_events(self) -> Sequence[Stopped]:
        return ()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.loss()
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        iteration = self.step // self.num_batches
        values = {"iteration": iteration, "best_perplexity": self.best.perplexity, "about": self.about}
        return {**tensors, **self.best.state()}, values

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        if values["about"] != self.about:
            raise ValueError("the run was started with other settings or another text: resume it with the same ones")
        self.model.load_state_dict(part_of(tensors, "model."))
        self.best.restore(tensors, values["best_perplexity"], self.model.group_of_word.device)
        self.step = values["iteration"] * self.num_batches

    def save_best(self) -> None:
        out, weights = self.out, self.best.weights
        if out is not None and not self.best.is_saved:
            first_does(
                lambda: save_model(out, self.model, self.corpus.tokenizer, self.about, weights),
                self.here,
                f"writing to {out}",
            )
            self.best.is_saved = True

    def finish(self, reason: Reason) -> None:
        """Leaves the model with its best tables; a pass that was not finished does not count."""
        self.step -= self.step % self.num_batches
        self.save_best()
        self.model.load_state_dict(self.best.weights)

    def closing_event(self, stopped: Stopped) -> Stopped:
        return stopped
