"""What is measured of a trained row: perplexities, sizes and times."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlhmm.baselines import training as baselines
from vlhmm.capture import Graphed
from vlhmm.data import Corpus, Tokens
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import Evaluation, HMMScorer, Scorer, evaluate
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import can_be_captured, score
from vlhmm.models import Model
from vlhmm.precision import Numerics, network_products
from vlhmm.tables import Tables
from vlhmm.training.baseline_settings import BaselineSettings
from vlhmm.training.presets import Recipe
from vlhmm.training.step import Step

TRAIN_STREAMS = 64
"""The training text is scored in so many warm-started streams: ten times as long as the others, in one it takes minutes."""
TRAIN_TOKENS = 1 << 20
"""Where perplexity is that of independent windows, so much of the training text is scored: as much as of a test text."""
LONG_TEXT, LONG_TEXT_TOKENS = 1 << 24, 1 << 22
"""Of a longer training text than that, so many tokens are scored in streams: all of it would take longer than training."""
WARM_STEPS, TIMED_STEPS = 10, 100
"""Training steps that compile and capture, and are not timed; steps that are."""
TIMED_BATCHES, TIMED_SECONDS = 20, 5.0
"""A batch is timed so often, or for so long."""
CURVE_POINTS = 60


@dataclass(frozen=True)
class Measured:
    quantity: str
    value: float
    protocol: str = ""


def perplexities(scorer: Scorer[Any], corpus: Corpus, *, test: bool, windows: int = 0) -> Iterator[Measured]:
    """Validation as one exact stream, the training text in several; the test text only where asked.

    `windows`: all in independent windows of so many tokens, and the training text as far as TRAIN_TOKENS.
    """
    tokenizer = corpus.tokenizer
    valid = evaluate(scorer, corpus.valid, tokenizer, independent=windows)
    yield from _as_measured("valid", valid)
    if test:
        scored = evaluate(scorer, corpus.test, tokenizer, independent=windows)
        yield from _as_measured("test", scored)
    if windows:
        read = _first(corpus.train, TRAIN_TOKENS)
        train = evaluate(scorer, read, tokenizer, independent=windows)
        yield Measured("train", train.perplexity, f"{train.protocol}; the first {len(read):,} tokens")
    else:
        quick = scorer.quick() if isinstance(scorer, HMMScorer) else scorer
        read = corpus.train if len(corpus.train) <= LONG_TEXT else _first(corpus.train, LONG_TEXT_TOKENS)
        train = evaluate(quick, read, tokenizer, streams=TRAIN_STREAMS)
        part = "" if read is corpus.train else f"; the first {len(read):,} tokens"
        yield Measured(
            "train", train.perplexity, train.protocol + part + ("" if quick is scorer else "; products in tf32")
        )


def _first(tokens: Tokens, count: int) -> Tokens:
    return Tokens(tokens.ids[:count], np.array([0, min(len(tokens), count)]))


def _as_measured(split: str, found: Evaluation) -> Iterator[Measured]:
    """Perplexity, and bits per byte where the tokens spell the text."""
    yield Measured(split, found.perplexity, found.protocol)
    if found.bits_per_byte is not None:
        yield Measured(f"{split}_bits", found.bits_per_byte)


def times(model: Model, recipe: Recipe, corpus: Corpus) -> Iterator[Measured]:
    """Of one batch: a forward pass as in training; evaluation that makes the tables first; evaluation from tables."""
    settings = recipe.train
    device = model.group_of_word.device
    epoch = Epoch(corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    tokens = next(epoch.windows()).to(device)
    batch = Batch(tokens, torch.full((settings.batch_size,), settings.window, device=device))
    generator = torch.Generator(device).manual_seed(settings.seed)

    def forward(tables: Tables) -> Tensor:
        return score(tables, batch).token_log_probs

    def make_and_forward() -> Tensor:
        return forward(_training_tables(model, recipe, generator))

    as_graph = device.type == "cuda" and can_be_captured(model.tables(), batch)
    how = "as a CUDA graph, " if as_graph else ""
    size = f"{settings.batch_size} x {settings.window} tokens, {how}median of at most {TIMED_BATCHES}"

    def median_ms(work: Callable[[], Tensor]) -> float:
        return _median_ms(_replayed(work, generator, device) if as_graph else work, device)

    with network_products(model.settings.precision, device):
        training_ms = median_ms(make_and_forward)
    yield Measured(
        "training_ms",
        training_ms,
        f"forward pass with state dropout {settings.state_dropout:g}, tables made anew, {size}",
    )
    with torch.no_grad():
        yield Measured(
            "regenerating_ms", median_ms(lambda: forward(model.tables())), f"all states, tables made anew, {size}"
        )
        tables = model.tables()
        yield Measured("cached_ms", median_ms(lambda: forward(tables)), f"all states, tables made beforehand, {size}")


def _replayed(work: Callable[[], Tensor], generator: torch.Generator, device: torch.device) -> Callable[[], Tensor]:
    """The work as training does it: without the host's time for each of its kernels."""
    graphed = Graphed[Tensor](device, eager_calls=1, generator=generator)
    graphed(work)
    return lambda: graphed(work)


def _training_tables(model: Model, recipe: Recipe, generator: torch.Generator) -> Tables:
    """Tables of the states that a training step would use."""
    rate, numerics = recipe.train.state_dropout, Numerics.training(model.settings.precision)
    if recipe.train.dropout == "columns":
        return model.tables(model.columns_after_dropout(rate, generator), numerics=numerics)
    return model.tables(model.kept_after_dropout(rate, generator), numerics=numerics)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median_ms(work: Callable[[], object], device: torch.device) -> float:
    work()
    _wait(device)
    taken: list[float] = []
    while len(taken) < TIMED_BATCHES and sum(taken) < TIMED_SECONDS:
        begun = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(taken)


def seconds_per_epoch(model: Model, recipe: Recipe, corpus: Corpus) -> Measured:
    """Of training steps with nothing beside them, by a copy of the model."""
    settings = recipe.train
    device = model.group_of_word.device
    epoch = Epoch(corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    windows = itertools.cycle(epoch.windows())
    step = Step(copy.deepcopy(model), settings)
    for number in range(WARM_STEPS):
        step(next(windows), settings.learning_rate, fresh=number == 0 or settings.windows == "independent")
    _wait(device)
    begun, count = time.perf_counter(), 0
    while count < TIMED_STEPS and time.perf_counter() - begun < TIMED_SECONDS:
        step(next(windows), settings.learning_rate, fresh=settings.windows == "independent")
        count += 1
    _wait(device)
    per_step = (time.perf_counter() - begun) / count
    return Measured("seconds_per_epoch", per_step * epoch.num_windows, f"{count} training steps alone, without checks")


def baseline_seconds_per_epoch(settings: BaselineSettings, corpus: Corpus, device: torch.device) -> Measured:
    seconds = baselines.seconds_per_epoch(settings, corpus, device=device, steps=TIMED_STEPS, max_seconds=TIMED_SECONDS)
    return Measured("seconds_per_epoch", seconds, f"at most {TIMED_STEPS} training steps alone, without checks")


def running_train(log: Sequence[Mapping[str, Any]], steps_per_epoch: int) -> float | None:
    """exp of the mean training loss, under dropout, over the epoch that ends with the best check."""
    checks = [record for record in log if record["kind"] == "check"]
    if not checks:
        return None
    last = min(checks, key=lambda record: record["valid_perplexity"])["step"]
    losses = [
        math.log(record["perplexity"])
        for record in log
        # Steps of a joint phase are of p(x, z).
        if record["kind"] == "step" and "objective" not in record and last - steps_per_epoch < record["step"] <= last
    ]
    return math.exp(math.fsum(losses) / len(losses)) if losses else None


def thinned_curve(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Checks at about equal distances, the best and the last one among them."""
    checks = [record for record in log if record["kind"] == "check"]
    if not checks:
        return []
    best = min(range(len(checks)), key=lambda index: checks[index]["valid_perplexity"])
    stride = -(-len(checks) // CURVE_POINTS)
    kept = sorted({*range(0, len(checks), stride), best, len(checks) - 1})
    return [
        {"tokens": float(checks[index]["tokens"]), "valid": round(checks[index]["valid_perplexity"], 3)}
        for index in kept
    ]
