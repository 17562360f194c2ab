"""This package at work."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from bench.workloads import Answer, DenseInputs, StepSizes, Timed, Work
from vlhmm.cluster import Blocks
from vlhmm.data import Corpus, Tokens, word_tokenizer
from vlhmm.hmm import HMM
from vlhmm.models import Kept, Model, neural_hmm
from vlhmm.tables import TableTransition, Tables, convert, dense_support
from vlhmm.train import TrainSettings, _Run

STEPS_CHECKED = 3
"""Losses compared with float64: those after the first depend on the gradients and the updates before them."""


class Ours:
    name = "vlhmm"

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        sizes, tokens = inputs.sizes, inputs.tokens
        hmm = HMM(
            Tables(
                convert(dense_support(sizes.num_words, sizes.states), device=inputs.device),
                inputs.start.log(),
                TableTransition(inputs.transition.log()),
                inputs.emission.log(),
            )
        )

        def log_prob() -> Tensor:
            with torch.no_grad():
                return hmm.log_prob(tokens)

        match work:
            case "W1":
                return Timed(log_prob, lambda found: {"log_prob": found})
            case "W2":
                return Timed(
                    lambda: hmm.expected_counts(tokens),
                    lambda found: {"transition": found.transition, "emission": found.emission},
                )
            case "W4":
                return Timed(lambda: hmm.viterbi(tokens), lambda found: {"path": found.states[:, 0]})
            case "W5":
                return Timed(lambda: hmm.posterior(tokens), lambda found: {"posterior": found.probs})


@dataclass(frozen=True)
class StepInputs:
    """A fresh model, the windows it is trained on, and how."""

    sizes: StepSizes
    model: Model
    corpus: Corpus
    settings: TrainSettings
    windows: list[Tensor]


def step_inputs(sizes: StepSizes, device: torch.device, num_windows: int = 64, seed: int = 0) -> StepInputs:
    """Random words, in blocks of nearly equal size."""
    tokenizer = word_tokenizer({f"w{word}": 1 for word in range(sizes.num_words - 1)}, unk=False)
    random = np.random.default_rng(seed)
    ids = random.integers(sizes.num_words, size=num_windows * sizes.batch * sizes.window)
    tokens = Tokens.from_documents([ids.tolist()], sizes.num_words)
    blocks = Blocks(np.arange(sizes.num_words, dtype=np.int64) % sizes.num_blocks, sizes.num_blocks)
    model = neural_hmm(
        blocks,
        sizes.states_per_block,
        sizes.dim,
        transition=sizes.transition,
        out_scale=1.0 if sizes.transition == "softmax" else 0.25,
        generator=torch.Generator().manual_seed(seed),
    ).to(device)
    # Without clipping a step is easily done again elsewhere; its cost, the gradient's norm, stays. Rates stay constant.
    settings = TrainSettings(
        batch_size=sizes.batch,
        window=sizes.window,
        state_dropout=sizes.state_dropout,
        schedule="constant",
        warmup=0.0,
        learning_rate=1e-3,
        epochs=1000,
        clip=0.0,
        seed=seed,
    )
    corpus = Corpus.from_splits("random", tokenizer, tokens, tokens, tokens)
    run = _Run(model, corpus, settings, None)
    return StepInputs(sizes, model, corpus, settings, [window.to(device) for window in run.epoch(0).windows()])


def first_steps(inputs: StepInputs) -> tuple[list[float], list[Kept]]:
    """Our losses of the first steps, and the states that each of them kept."""
    run = _Run(copy.deepcopy(inputs.model), inputs.corpus, inputs.settings, None)
    losses, kept = [], []
    for window in inputs.windows[:STEPS_CHECKED]:
        losses.append(run.train_step(window))
        used = run.model.all_states() if run.kept is None else run.kept
        kept.append(Kept(used.states.clone()))
    return losses, kept


def timed_step(inputs: StepInputs) -> Timed:
    """One training step after another, all of it: parameters, recursion, gradient, update."""
    run = _Run(copy.deepcopy(inputs.model), inputs.corpus, inputs.settings, None)
    windows = cycle(inputs.windows)

    def answer(_: object) -> Answer:
        return {"losses": torch.tensor(first_steps(inputs)[0], dtype=torch.float64)}

    return Timed(lambda: run.train_step(next(windows)), answer)


def epoch_losses(model: Model, corpus: Corpus, settings: TrainSettings, limit: int | None = None) -> list[float]:
    """The training losses of one epoch, without checks on validation text."""
    run = _Run(model, corpus, settings, None)
    return [run.train_step(window) for window in islice(run.epoch(0).windows(), limit)]
