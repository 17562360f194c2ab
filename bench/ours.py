"""This package at work."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bench.workloads import DenseInputs, StepSizes, Timed, Work, products_read
from vlhmm.capture import EAGER_CALLS
from vlhmm.cluster import Blocks
from vlhmm.hmm import HMM
from vlhmm.models import Model, StateSubset, neural_hmm
from vlhmm.precision import Precision
from vlhmm.records import convert
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.transitions import TableTransition

STEPS_CHECKED = EAGER_CALLS + 3
"""Losses compared with float64. Those after the first depend on the gradients and updates before them, and the last ones,
on a GPU, come from captured graphs."""
NUM_WINDOWS = 16
QUERY_PRECISION: Precision = "bf16"
"""Of W1, W2 and W5, whose peers read no more; the default of queries is float32."""
STEP_PRECISION: Precision = "bf16"
"""Of training steps; that of models."""
Initialisation = Literal["paper", "code"]


def dense_hmm(inputs: DenseInputs, precision: Precision) -> HMM:
    return HMM(
        Tables(
            convert(dense_support(inputs.sizes.num_words, inputs.sizes.states), device=inputs.device),
            inputs.start.log(),
            TableTransition(inputs.transition.log()),
            inputs.emission.log(),
            precision=precision,
        )
    )


@dataclass(frozen=True)
class Ours:
    precision: Precision = QUERY_PRECISION
    name = "vlhmm"

    def reads(self, work: Work, device: torch.device) -> str:
        """What its matrix products read; Viterbi has none."""
        return "float32" if work == "W4" else products_read(self.precision, device)

    def timed(self, work: Work, inputs: DenseInputs) -> Timed:
        tokens = inputs.tokens
        hmm = dense_hmm(inputs, self.precision)

        match work:
            case "W1":
                return Timed(lambda: hmm.log_prob(tokens), lambda found: {"log_prob": found})
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
    """A fresh model, the windows it is trained on, one after the other, and how."""

    sizes: StepSizes
    model: Model
    settings: TrainSettings
    windows: list[Int[Tensor, "B T"]]


def step_model(
    sizes: StepSizes,
    device: torch.device,
    generator: torch.Generator,
    # From N(0, 1) embeddings the logits are so large that bf16 operands miss the error that is allowed.
    initialisation: Initialisation = "paper",
    precision: Precision = STEP_PRECISION,
) -> Model:
    """Random words, in blocks of nearly equal size."""
    blocks = Blocks(np.arange(sizes.num_words, dtype=np.int64) % sizes.num_blocks, sizes.num_blocks)
    model = neural_hmm(
        blocks,
        sizes.states_per_block,
        sizes.dim,
        transition=sizes.transition,
        initialisation=initialisation,
        precision=precision,
        generator=generator,
    )
    return model.to(device)


def step_inputs(
    sizes: StepSizes, device: torch.device, seed: int = 0, num_windows: int = NUM_WINDOWS, **settings: Any
) -> StepInputs:
    """`settings`: fields of `TrainSettings` other than the benchmark's own."""
    generator = torch.Generator().manual_seed(seed)
    model = step_model(sizes, device, generator)
    chosen = TrainSettings(
        learning_rate=1e-3,
        batch_size=sizes.batch,
        window=sizes.window,
        state_dropout=sizes.state_dropout,
        # Easily done again elsewhere; what clipping costs, the gradient's norm, stays.
        clip=0.0,
        seed=seed,
    )
    windows = torch.randint(sizes.num_words, (num_windows, sizes.batch, sizes.window), generator=generator)
    return StepInputs(sizes, model, replace(chosen, **settings), list(windows.to(device)))


def first_steps(inputs: StepInputs) -> tuple[Float[Tensor, " S"], list[StateSubset]]:
    """Our losses of the first steps, and the states that each of them kept."""
    step = Step(copy.deepcopy(inputs.model), inputs.settings)
    losses: list[float] = []
    kept: list[StateSubset] = []
    for number, window in enumerate(inputs.windows[:STEPS_CHECKED]):
        step(window, inputs.settings.learning_rate, fresh=number == 0)
        losses.append(float(step.loss))
        states = step.state().get("kept", inputs.model.states_of_group)
        kept.append(StateSubset(states.clone()))
    return torch.tensor(losses, dtype=torch.float64), kept


def timed_step(inputs: StepInputs) -> Timed:
    """One training step after another, all of it: parameters, recursion, gradient, update."""
    step = Step(copy.deepcopy(inputs.model), inputs.settings)
    windows = cycle(inputs.windows)

    def run() -> None:
        step(next(windows), inputs.settings.learning_rate, fresh=step.count == 0)

    return Timed(run, lambda _: {"losses": first_steps(inputs)[0]}, warm_ups=STEPS_CHECKED)
