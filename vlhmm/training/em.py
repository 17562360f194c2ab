"""Baum-Welch over a corpus, full or in mini-batches, for models whose tables are free parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vlhmm._version import __version__
from vlhmm.data import Corpus
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.inference.fit import maximized, mixed, total_counts
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts
from vlhmm.models import Model
from vlhmm.precision import Numerics
from vlhmm.settings import settings_from
from vlhmm.tables import Tables
from vlhmm.training.checkpoint import save_model
from vlhmm.training.run_folder import RunFolder
from vlhmm.training.step import part_of
from vlhmm.training.trainer import VALID_STREAMS, CheckEvent, DivergedError, Event, StepEvent, Stopped, stop_signals


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
    """Trains a scalar `model` in place by Baum-Welch and leaves it with its best tables; the arguments are those of `train`."""
    settings = settings_from(EMSettings, {**asdict(settings or EMSettings()), **changes})
    for event in em_training(model, corpus, settings, out=out, resume=resume, max_seconds=max_seconds):
        if isinstance(event, Stopped):
            return event
    raise AssertionError("training always ends with Stopped")


def em_training(
    model: Model,
    corpus: Corpus,
    settings: EMSettings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
) -> Iterator[Event]:
    """The passes of Baum-Welch, an event at a time: a step is a batch counted, its loss that of the pass so far; a check ends
    each pass. The last event is `Stopped`."""
    if model.settings.parameterization != "scalar":
        raise ValueError(
            f"Baum-Welch needs free tables, but the model is {model.settings.parameterization!r}: use scalar_hmm, or train"
        )
    if model.settings.emission_floor:
        raise ValueError(
            f"emission_floor is {model.settings.emission_floor}, but Baum-Welch sets emissions as they are: use 0, or train"
        )
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    about = {
        "vlhmm": __version__,
        "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
        "em": asdict(settings),
    }
    begun = time.monotonic()
    num_steps, batch_tokens = em_steps(settings, corpus), settings.batch_size * settings.window
    num_batches = num_steps // settings.iterations
    best_perplexity, best_state, done = math.inf, _copied(model), 0
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(Path(out), resume)) if out is not None else None
        stop_asked = stack.enter_context(stop_signals())
        if folder is not None and resume and (saved := folder.load_state()) is not None:
            tensors, values = saved
            if values["about"] != about:
                raise ValueError("the run was begun with other settings or another text: resume it with the same ones")
            model.load_state_dict(part_of(tensors, "model."))
            best_state = part_of(tensors, "best.")
            best_perplexity, done = values["best_perplexity"], values["iteration"]
            folder.cut_log(done * num_batches)
        reason: Literal["finished", "time", "interrupted"] = "finished"
        while done < settings.iterations and reason == "finished":
            step, loss = done * num_batches, math.nan
            for number, loss in enumerate(_one_pass(model, corpus, settings, done + 1), 1):
                step = done * num_batches + number
                yield StepEvent(step, num_steps, loss, step * batch_tokens)
                if stop_asked.is_set():
                    break
            if not math.isfinite(loss):
                raise DivergedError(f"Baum-Welch broke down in iteration {done + 1}: the loss is {loss}")
            if step < (done + 1) * num_batches or stop_asked.is_set():
                # A pass that was not finished is made again when the run goes on.
                reason = "interrupted"
                break
            done += 1
            perplexity = evaluate(
                HMMScorer(model.tables().detach()).quick(), corpus.valid, streams=VALID_STREAMS
            ).perplexity
            improved = perplexity < best_perplexity
            if improved:
                best_perplexity, best_state = perplexity, _copied(model)
            check = CheckEvent(step, num_steps, step * batch_tokens, perplexity, best_perplexity, improved)
            yield check
            if folder is not None:
                if improved:
                    save_model(folder.path, model, corpus.tokenizer, about)
                tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
                tensors |= {f"best.{name}": value for name, value in best_state.items()}
                folder.save_state(tensors, {"iteration": done, "best_perplexity": best_perplexity, "about": about})
                folder.log({"kind": "step", "step": step, "tokens": step * batch_tokens, "perplexity": math.exp(loss)})
                folder.log({"kind": "check", "seconds": round(time.monotonic() - begun, 3), **asdict(check)})
            if stop_asked.is_set():
                reason = "interrupted"
            elif max_seconds is not None and time.monotonic() - begun >= max_seconds and done < settings.iterations:
                reason = "time"
        model.load_state_dict(best_state)
        yield Stopped(reason, done * num_batches, num_steps, best_perplexity, time.monotonic() - begun)


def em_steps(settings: EMSettings, corpus: Corpus) -> int:
    """Batches that are counted in all passes."""
    return settings.iterations * _epoch(corpus, settings, 0).num_windows


def _copied(model: Model) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _epoch(corpus: Corpus, settings: EMSettings, number: int) -> Epoch:
    epoch = Epoch(corpus.train, "independent", settings.batch_size, settings.window, settings.seed, number)
    epoch.check()
    return epoch


def _one_pass(model: Model, corpus: Corpus, settings: EMSettings, iteration: int) -> Iterator[float]:
    """One pass over the text; after every batch the loss so far, of each batch under the tables it was counted with."""
    device = model.group_of_word.device
    # Full-batch Baum-Welch sees the same windows in every pass: only then can its likelihood never fall.
    epoch = _epoch(corpus, settings, iteration if settings.batches_per_step else 0)
    per_step = settings.batches_per_step or epoch.num_windows
    numerics = Numerics.training(model.settings.precision)
    tables = model.tables(numerics=numerics).detach()
    counts: Counts | None = None
    log_prob = 0.0
    for number, tokens in enumerate(epoch.windows(), 1):
        first = (number - 1) * settings.batch_size
        batch = Batch(tokens.to(device), torch.full((tokens.shape[0],), tokens.shape[1], device=device))
        part, part_log_prob = total_counts(tables, [(range(first, first + settings.batch_size), batch)])
        counts = part if counts is None else counts + part
        log_prob += part_log_prob
        if number % per_step == 0 or number == epoch.num_windows:
            new = maximized(counts, tables, settings.pseudocount)
            _set_tables(model, mixed(new, tables, settings.rate) if settings.batches_per_step else new)
            tables, counts = model.tables(numerics=numerics).detach(), None
        yield -log_prob / (number * settings.batch_size * settings.window)


@torch.no_grad()
def _set_tables(model: Model, tables: Tables) -> None:
    """The log-probabilities become the model's logits: normalising them changes nothing."""
    logits = {
        "start.logits": tables.log_start,
        "transition.logits": tables.transition.log_rows(torch.arange(tables.num_states, device=tables.device)),
        "emission.logits": tables.log_emission,
    }
    parameters = dict(model.named_parameters())
    for name, values in logits.items():
        parameters[name].copy_(values)
