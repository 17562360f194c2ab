"""One epoch of training on Penn Treebank, at the paper's setting and block-factored with more states."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from bench.measure import seconds_of
from bench.report import Epoch
from bench.workloads import products_read
from vlhmm.data import load_corpus
from vlhmm.training.gradient_task import GradientTask
from vlhmm.training.presets import Recipe, preset
from vlhmm.training.trainer import LOG_STEPS

EpochWork = Literal["PTB", "PTBb"]

MIN_FALL = 0.01
"""Nats per token by which an epoch's losses must fall: more than rounding."""


def recipe_of(work: EpochWork) -> Recipe:
    if work == "PTB":
        return preset("chiu2020-ptb")
    recipe = preset("default")
    return replace(
        recipe,
        model=replace(recipe.model, states_per_block=512),
        train=replace(recipe.train, batch_size=32, window=64, state_dropout=0.75),
    )


def run_epoch(work: EpochWork, device: torch.device, steps: int | None = None) -> Epoch:
    """Every step of an epoch; the words' blocks and the checks on validation text are not timed.

    A time counts only if the text was learnt from: the last tenth of the losses must lie below the first tenth.
    """
    recipe = recipe_of(work)
    reads = products_read(recipe.model.precision, device)
    try:
        corpus = load_corpus("ptb")
    except (ValueError, OSError) as reason:
        return Epoch(work, None, 0, reads, message=f"not run: {reason}")
    model = recipe.make_model(corpus, recipe.make_blocks(corpus)).to(device)
    task = GradientTask(model, corpus, recipe.train)
    windows = list(islice(task.batches(), task.steps_per_epoch))[:steps]
    losses: list[float] = []

    def train(some: list[Tensor]) -> None:
        # As in training, the loss is not read at every step: reading it synchronises with the GPU.
        for window in some:
            task.make_step(window)
            if task.step % LOG_STEPS == 0:
                losses.append(task.loss())

    # The first steps compile and capture.
    train(windows[:LOG_STEPS])
    seconds = seconds_of(lambda: train(windows), device)
    tenth = max(1, len(losses) // 10)
    first, last = fmean(losses[:tenth]), fmean(losses[-tenth:])
    tokens = len(windows) * recipe.train.batch_size * recipe.train.window
    if not last < first - MIN_FALL:
        return Epoch(work, None, tokens, reads, first, last, f"wrong: the loss went from {first:.3f} to {last:.3f}")
    return Epoch(work, seconds, tokens, reads, first, last)
