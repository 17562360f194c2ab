"""Baum-Welch over a corpus, full or in mini-batches, for models whose tables are free parameters."""

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

from vlhmm._version import __version__
from vlhmm.checkpoint import save_model
from vlhmm.data import Corpus
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.inference.fit import maximized, mixed, total_counts
from vlhmm.inference.gather import Batch
from vlhmm.models import Model
from vlhmm.run_folder import RunFolder
from vlhmm.settings import settings_from
from vlhmm.tables import Tables
from vlhmm.train import VALID_STREAMS, CheckEvent, DivergedError, Event, StepEvent, Stopped, stop_signals


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
    """Trains a scalar `model` in place by Baum-Welch; the arguments are those of `train`."""
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
    """The passes of Baum-Welch, an event at a time; the last one is `Stopped`."""
    if model.settings.parameterization != "scalar":
        raise ValueError(
            f"Baum-Welch needs free tables, but the model is {model.settings.parameterization!r}: use scalar_hmm, or train"
        )
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    about = {
        "vlhmm": __version__,
        "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
        "em": asdict(settings),
    }
    begun = time.monotonic()
    best_perplexity, first = math.inf, 0
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(Path(out), resume)) if out is not None else None
        stop_asked = stack.enter_context(stop_signals())
        if folder is not None and resume and (saved := folder.load_state()) is not None:
            tensors, values = saved
            if values["about"] != about:
                raise ValueError("the run was begun with other settings or another text: resume it with the same ones")
            model.load_state_dict(tensors)
            best_perplexity, first = values["best_perplexity"], values["iteration"]
            folder.cut_log(first)
        reason: Literal["finished", "time", "interrupted"] = "finished"
        num_windows = _epoch(corpus, settings, 0).num_windows
        iteration = first
        for iteration in range(first + 1, settings.iterations + 1):
            log_prob = _one_pass(model, corpus, settings, iteration)
            tokens = iteration * num_windows * settings.batch_size * settings.window
            loss = -log_prob / (num_windows * settings.batch_size * settings.window)
            if not math.isfinite(loss):
                raise DivergedError(f"Baum-Welch broke down in iteration {iteration}: the loss is {loss}")
            yield StepEvent(iteration, settings.iterations, loss, tokens)
            scorer = HMMScorer(model.tables().detach())
            perplexity = evaluate(scorer, corpus.valid, streams=VALID_STREAMS).perplexity
            improved = perplexity < best_perplexity
            best_perplexity = min(perplexity, best_perplexity)
            check = CheckEvent(iteration, settings.iterations, tokens, perplexity, best_perplexity, improved)
            yield check
            if folder is not None:
                if improved:
                    save_model(folder.path, model, corpus.tokenizer, about)
                values = {"iteration": iteration, "best_perplexity": best_perplexity, "about": about}
                folder.save_state(model.state_dict(), values)
                folder.log({"kind": "step", "step": iteration, "tokens": tokens, "perplexity": math.exp(loss)})
                folder.log({"kind": "check", "seconds": round(time.monotonic() - begun, 3), **asdict(check)})
            if stop_asked.is_set() or (max_seconds is not None and time.monotonic() - begun >= max_seconds):
                reason = "interrupted" if stop_asked.is_set() else "time"
                break
        yield Stopped(reason, iteration, settings.iterations, best_perplexity, time.monotonic() - begun)


def _epoch(corpus: Corpus, settings: EMSettings, number: int) -> Epoch:
    epoch = Epoch(corpus.train, "independent", settings.batch_size, settings.window, settings.seed, number)
    epoch.check()
    return epoch


def _one_pass(model: Model, corpus: Corpus, settings: EMSettings, iteration: int) -> float:
    """One pass over the text; log p of its windows, each under the tables it was counted with."""
    device = model.group_of_word.device
    # Full-batch Baum-Welch sees the same windows in every pass: only then can its likelihood never fall.
    windows = _epoch(corpus, settings, iteration if settings.batches_per_step else 0).windows()
    batches = (
        (
            range(number * settings.batch_size, (number + 1) * settings.batch_size),
            Batch(tokens.to(device), torch.full((tokens.shape[0],), tokens.shape[1], device=device)),
        )
        for number, tokens in enumerate(windows)
    )
    if not settings.batches_per_step:
        tables = model.tables().detach()
        counts, log_prob = total_counts(tables, batches)
        _set_tables(model, maximized(counts, tables, settings.pseudocount))
        return log_prob
    log_prob = 0.0
    while some := list(islice(batches, settings.batches_per_step)):
        tables = model.tables().detach()
        counts, part = total_counts(tables, some)
        _set_tables(model, mixed(maximized(counts, tables, settings.pseudocount), tables, settings.rate))
        log_prob += part
    return log_prob


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
