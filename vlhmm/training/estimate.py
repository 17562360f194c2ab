"""How long a training will take: a few steps and a part of the validation text are timed before it begins."""

from __future__ import annotations

import copy
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from vlhmm.data import Corpus
from vlhmm.evaluate import HMMScorer
from vlhmm.models import Model
from vlhmm.training.gradient_task import GradientTask
from vlhmm.training.plan import Plan, sketched_model
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import VALID_STREAMS

TIMED_STEPS = 3
"""The first of them is not counted: it also sets things up."""
TIMED_WINDOW = 64
"""Tokens of each stream of the validation text."""


def estimate_seconds(model: Model, corpus: Corpus, settings: TrainSettings) -> float:
    """Time a few steps of a copy of the model, and a check.

    Args:
        model: The model, which is left as it is. It must be on a CPU: the first steps on a GPU are not like the others.
        corpus: Training and validation text.
        settings: The settings of the training.

    Returns:
        Seconds of the whole training, its checks included, about.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from vlhmm.training.estimate import estimate_seconds
        >>> _ = Path("animals.txt").write_text(50 * "the cat sees a bird\\nthe dog sees a fish\\n")
        >>> corpus = vlhmm.load_corpus("animals.txt")
        >>> blocks = vlhmm.brown_clusters(corpus.train, 4, vocab_size=corpus.tokenizer.vocab_size)
        >>> model = vlhmm.neural_hmm(blocks, states_per_block=4, dim=8)
        >>> estimate_seconds(model, corpus, vlhmm.TrainSettings(epochs=2, batch_size=4, window=8)) > 0
        True
    """
    # The same steps as in training; only their time is used.
    task = GradientTask(copy.deepcopy(model), corpus, settings)
    seconds = []
    for tokens in islice(task.batches(), TIMED_STEPS):
        begun = time.perf_counter()
        task.make_step(tokens)
        seconds.append(time.perf_counter() - begun)
    of_step = min(seconds[1:] or seconds)
    begun = time.perf_counter()
    with torch.no_grad():
        scorer = HMMScorer(model.tables().detach()).quick()
    of_tables = time.perf_counter() - begun
    size = (VALID_STREAMS, TIMED_WINDOW)
    # A short text is repeated to fill the window.
    ids = torch.from_numpy(np.resize(corpus.valid.ids[: VALID_STREAMS * TIMED_WINDOW], size).astype(np.int64))
    begun = time.perf_counter()
    scorer.score_window(ids, torch.full(size[:1], TIMED_WINDOW), None)
    of_check = of_tables + (time.perf_counter() - begun) * len(corpus.valid) / ids.numel()
    return task.num_steps * of_step + settings.epochs * settings.checks_per_epoch * of_check


def planned_seconds(
    plan: Plan, corpus: Corpus, device: torch.device, *, blocks_file: Path | None = None
) -> float | None:
    """How long the training will take, by the time of a few steps; None where these say little: on a GPU, of stages, of Baum-Welch.

    Args:
        plan: What the run is to do.
        corpus: The corpus of the plan.
        device: Where it is to run.
        blocks_file: As in `forecast`.
    """
    if device.type != "cpu" or plan.em is not None or plan.recipe.stages is not None:
        return None
    recipe, model, _ = sketched_model(plan, corpus, blocks_file)
    return estimate_seconds(model, corpus, recipe.train)
