"""The training of HMMs of our own from random starts: by gradient, from several starts, by Baum-Welch."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from experiments.measure import Measured, running_train, thinned_curve
from experiments.row_events import SAVE_SECONDS, Place, RowStopped, Trained, Training, TrainingEvent, Working
from experiments.row_settings import BaumWelchHMM, RestartedHMM
from experiments.texts import with_training_text
from vlhmm.cluster import Blocks, word_counts
from vlhmm.data import Corpus
from vlhmm.data.atomic import atomic_write
from vlhmm.data.json_file import read_json_object
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import HMMScorer
from vlhmm.models import Model
from vlhmm.precision import float32_products
from vlhmm.training.checkpoint import load_model
from vlhmm.training.em import em_training
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import STATE, read_log
from vlhmm.training.trainer import Event, Stopped, relay

TIMING = "timing.json"


def train_hmm(
    recipe: Recipe, corpus: Corpus, device: torch.device, place: Place, max_seconds: float | None
) -> Training:
    begun = time.monotonic()
    blocks = yield from shared_blocks(recipe, corpus, place.blocks)
    model = recipe.make_model(corpus, blocks).to(device)
    events = training(
        model,
        corpus,
        recipe.train,
        out=place.folder,
        resume=True,
        max_seconds=max_seconds,
        save_seconds=SAVE_SECONDS,
        save_at_end=not place.passing,
    )
    return (yield from watched(events, model, recipe, corpus, place.folder, begun))


def train_restarts(
    settings: RestartedHMM, corpus: Corpus, device: torch.device, place: Place, max_seconds: float | None
) -> Training:
    """Each start on a part of its own of the text; the best on validation is what the row gives."""
    begun, number = time.monotonic(), settings.restarts.number
    ends = [len(corpus.train) * part // number for part in range(number + 1)]
    best: Trained | None = None
    best_perplexity, seconds = float("inf"), 0.0
    for start in range(number):
        text = with_training_text(corpus, ends[start], ends[start + 1])
        recipe = settings.recipe
        recipe = replace(recipe, train=replace(recipe.train, seed=recipe.train.seed + 1000 * start))
        left = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))
        # The next run goes on behind those that are finished.
        own = replace(place, folder=place.folder / f"start-{start}", passing=False)
        trained = yield from train_hmm(recipe, text, device, own, left)
        if trained is None:
            return None
        seconds += trained.seconds
        perplexity = min(point["valid"] for point in trained.curve)
        if perplexity < best_perplexity:
            best, best_perplexity = trained, perplexity
    assert best is not None
    return replace(best, seconds=seconds)


def train_baum_welch(
    settings: BaumWelchHMM, corpus: Corpus, device: torch.device, place: Place, max_seconds: float | None
) -> Training:
    begun, folder = time.monotonic(), place.folder
    blocks = yield from shared_blocks(settings.recipe, corpus, place.blocks)
    model = settings.recipe.make_model(corpus, blocks).to(device)
    earlier = read_timing(folder)
    yield Working("Baum-Welch")
    events = em_training(model, corpus, settings.em, out=folder, resume=True, max_seconds=max_seconds)
    stopped = yield from relay(events, Stopped)
    seconds = earlier.get("seconds", 0.0) + time.monotonic() - begun
    write_timing(folder, {"seconds": seconds})
    if stopped.reason != "finished" and stopped.step < stopped.num_steps:
        yield RowStopped("time" if stopped.reason == "time" else "interrupted", stopped.step, stopped.num_steps)
        return None
    best = load_model(folder, device).model
    per_pass = Measured("seconds_per_epoch", seconds / settings.em.iterations, "a pass of Baum-Welch with its check")
    return Trained(scorer_of(best), best.num_parameters, seconds, [per_pass], thinned_curve(read_log(folder)))


def watched(
    events: Iterator[Event | Working], model: Model, recipe: Recipe, corpus: Corpus, folder: Path, begun: float
) -> Training:
    """Passes the events of a gradient training on, and takes stock at its end."""
    earlier = read_timing(folder)
    stopped = yield from relay(events, Stopped)
    seconds = earlier.get("seconds", 0.0) + time.monotonic() - begun
    write_timing(folder, {"seconds": seconds})
    if stopped.reason != "finished":
        yield RowStopped(stopped.reason, stopped.step, stopped.num_steps)
        return None
    settings = recipe.train
    epoch = Epoch(corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    others = []
    log = read_log(folder)
    running = running_train(log, epoch.num_windows)
    if running is not None:
        others.append(Measured("running_train", running, "mean over the epoch before the best check, with its dropout"))
    return Trained(scorer_of(model), model.num_parameters, seconds, others, thinned_curve(log))


def scorer_of(model: Model) -> HMMScorer:
    # Training may round; what is reported does not.
    with torch.no_grad(), float32_products("highest", model.group_of_word.device):
        return HMMScorer(model.tables().detach())


def shared_blocks(recipe: Recipe, corpus: Corpus, folder: Path) -> Generator[TrainingEvent, None, Blocks]:
    """Rows with the same blocks of words share them."""
    if recipe.blocks.clustering != "brown":
        return recipe.make_blocks(corpus)
    decided_by = {**asdict(recipe.blocks), "reset": None, "seed": recipe.train.seed, "corpus": corpus.hash}
    path = folder / f"{name_of(decided_by)}.tsv"
    tokens = corpus.tokenizer.tokens()
    folder.mkdir(parents=True, exist_ok=True)
    # Rows that are trained side by side wait for the one that makes them.
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            return Blocks.load(path, tokens)
        yield Working("clustering words")
        blocks = recipe.make_blocks(corpus)
        blocks.save(path, tokens, word_counts(corpus.train, corpus.tokenizer.vocab_size))
        return blocks


def name_of(decided_by: Mapping[str, Any]) -> str:
    """Of what rows share: a hash of what decides it."""
    return hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:16]


def read_timing(folder: Path) -> dict[str, float]:
    """Of the runs before this one, which resumes them."""
    path = folder / TIMING
    if not (path.exists() and (folder / STATE).exists()):
        return {}
    values = read_json_object(path)
    if not all(isinstance(value, int | float) for value in values.values()):
        raise ValueError(f"{path} holds other things than seconds: it was edited; delete it")
    return values


def write_timing(folder: Path, values: Mapping[str, float]) -> None:
    atomic_write(folder / TIMING, json.dumps(values).encode())
