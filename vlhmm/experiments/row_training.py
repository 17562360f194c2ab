"""The training of a row of any kind, resumable: events, and at the end a scorer with what was seen on the way."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock

from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS, KneserNey
from vlhmm.baselines.settings import BaselineSettings
from vlhmm.baselines.training import TrainedBaseline, train_baseline
from vlhmm.cluster import Blocks, word_counts
from vlhmm.data import Corpus
from vlhmm.data.atomic import atomic_write
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer, Scorer
from vlhmm.experiments.measure import Measured, running_train, thinned_curve
from vlhmm.experiments.row_settings import KneserNeySettings, RowSettings, with_seed
from vlhmm.models import Model
from vlhmm.recipe import Recipe
from vlhmm.run_folder import read_log
from vlhmm.train import CheckEvent, StepEvent, Stopped, training

SAVE_SECONDS = 60.0
"""Between two saves of a run: at every check they would take longer than the training of large models."""
TIMING = "timing.json"


@dataclass(frozen=True)
class Working:
    """Something other than a step of training has begun."""

    what: str


@dataclass(frozen=True)
class RowStopped:
    """Training ended before its plan did; running the row again goes on from there."""

    reason: Literal["time", "interrupted"]
    step: int
    num_steps: int


TrainingEvent = StepEvent | CheckEvent | Working | RowStopped


@dataclass(frozen=True)
class Place:
    """Where a row's training is kept."""

    folder: Path
    blocks: Path
    """Blocks of words, which rows share."""


@dataclass(frozen=True)
class Trained:
    scorer: Scorer[Any]
    """With the weights that were best on validation."""
    num_parameters: int
    seconds: float
    """Of all sittings."""
    others: list[Measured]
    """What can only be known from the training itself."""
    curve: list[dict[str, float]]
    hmm: tuple[Model, Recipe] | None = None
    """Where it is one of ours, whose steps can be timed alone."""


Training = Generator[TrainingEvent, None, Trained | None]
"""Events, and at the end what was trained; None if it stopped before."""


def train_row(
    settings: RowSettings,
    seed: int,
    corpus: Corpus,
    device: torch.device,
    place: Place,
    max_seconds: float | None,
    side_by_side: int = 1,
) -> Training:
    """Trains what `settings` describe, or goes on with it; the last event is `RowStopped` if it did not get to the end.

    `side_by_side`: so many trainings share the device.
    """
    settings = with_seed(settings, seed)
    if isinstance(settings, Recipe):
        return (yield from _train_hmm(settings, corpus, device, place, max_seconds))
    if isinstance(settings, KneserNeySettings):
        return (yield from _fit_kneser_ney(settings, corpus))
    return (yield from _train_neural(settings, seed, corpus, device, place, max_seconds, side_by_side))


def _train_hmm(
    recipe: Recipe, corpus: Corpus, device: torch.device, place: Place, max_seconds: float | None
) -> Training:
    begun = time.monotonic()
    blocks = yield from _blocks(recipe, corpus, place.blocks)
    model = recipe.make_model(corpus, blocks).to(device)
    earlier = _read_timing(place.folder)
    stopped: Stopped | None = None
    for event in training(
        model,
        corpus,
        recipe.train,
        out=place.folder,
        resume=True,
        max_seconds=max_seconds,
        save_seconds=SAVE_SECONDS,
    ):
        if isinstance(event, Stopped):
            stopped = event
        else:
            yield event
    assert stopped is not None
    seconds = earlier.get("seconds", 0.0) + time.monotonic() - begun
    _write_timing(place.folder, {"seconds": seconds})
    if stopped.reason != "finished":
        yield RowStopped(stopped.reason, stopped.step, stopped.num_steps)
        return None
    settings = recipe.train
    epoch = Epoch(corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    others = []
    log = read_log(place.folder)
    running = running_train(log, epoch.num_windows)
    if running is not None:
        others.append(Measured("running_train", running, "mean over the epoch before the best check, with its dropout"))
    with torch.no_grad():
        # Training may round; what is reported does not.
        scorer = HMMScorer(replace(model.tables().detach(), precision="highest"))
    return Trained(scorer, model.num_parameters, seconds, others, thinned_curve(log), (model, recipe))


def _blocks(recipe: Recipe, corpus: Corpus, folder: Path) -> Generator[TrainingEvent, None, Blocks]:
    """Rows with the same blocks of words share them."""
    if recipe.blocks.clustering != "brown":
        return recipe.make_blocks(corpus)
    decided_by = {**asdict(recipe.blocks), "reset": None, "seed": recipe.train.seed, "corpus": corpus.hash}
    name = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"{name}.tsv"
    tokens = corpus.tokenizer.tokens()
    folder.mkdir(parents=True, exist_ok=True)
    # Rows that are trained side by side wait for the one that makes them.
    with FileLock(folder / f"{name}.lock"):
        if path.exists():
            return Blocks.load(path, tokens)
        yield Working("clustering words")
        blocks = recipe.make_blocks(corpus)
        blocks.save(path, tokens, word_counts(corpus.train, corpus.tokenizer.vocab_size))
        return blocks


def _fit_kneser_ney(settings: KneserNeySettings, corpus: Corpus) -> Training:
    yield Working("counting n-grams")
    begun = time.monotonic()
    model = KneserNey.fit(
        corpus.train,
        num_words=corpus.tokenizer.vocab_size,
        eos_id=corpus.tokenizer.eos_id,
        order=settings.order,
        fallback=FALLBACK_DISCOUNTS if settings.fallback else None,
    )
    return Trained(model, model.num_parameters, time.monotonic() - begun, [], [])


def _train_neural(
    settings: BaselineSettings,
    seed: int,
    corpus: Corpus,
    device: torch.device,
    place: Place,
    max_seconds: float | None,
    side_by_side: int,
) -> Training:
    begun = time.monotonic()
    earlier = _read_timing(place.folder)
    trained: TrainedBaseline | None = None
    step, num_steps = 0, 0
    for event in train_baseline(
        settings, corpus, device=device, seed=seed, max_seconds=max_seconds, out=place.folder, resume=True
    ):
        if isinstance(event, TrainedBaseline):
            trained = event
        else:
            step, num_steps = event.step, event.num_steps
            yield event
    assert trained is not None
    seconds = earlier.get("seconds", 0.0) + time.monotonic() - begun
    shared_by = max(side_by_side, earlier.get("side_by_side", 1))
    _write_timing(place.folder, {"seconds": seconds, "side_by_side": shared_by})
    if trained.reason in ("time", "interrupted"):
        yield RowStopped("time" if trained.reason == "time" else "interrupted", step, num_steps)
        return None
    others = []
    if math.isfinite(trained.seconds_per_epoch):
        protocol = "training steps without checks and the first steps"
        if shared_by > 1:
            protocol += f", while {shared_by:.0f} trainings shared the device"
        others.append(Measured("seconds_per_epoch", trained.seconds_per_epoch, protocol))
    return Trained(trained.scorer, trained.num_parameters, seconds, others, thinned_curve(read_log(place.folder)))


def _read_timing(folder: Path) -> dict[str, float]:
    """Of the sittings before this one that ended in order."""
    path = folder / TIMING
    if not path.exists():
        return {}
    values: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _write_timing(folder: Path, values: Mapping[str, float]) -> None:
    atomic_write(folder / TIMING, json.dumps(values).encode())
