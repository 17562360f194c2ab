"""Every training loop on a small text: its losses, its checks, its final weights, and the same after a stop in the middle."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vlhmm

from . import entry_points, records
from .entry_points import Event

NAME = "training"
FIRST_EDITION = records.FOLDER / "first_edition"
TEACHER = FIRST_EDITION / "decoder"
NUM_LOSSES = 20
STOP_AT = 13
"""The step after which a run is stopped: within the second epoch, most often between two checks."""

SMALL = {"epochs": 2, "batch_size": 4, "window": 24, "checks_per_epoch": 2, "learning_rate": 0.02}
"""Eleven windows an epoch."""
BLOCKED, DENSE = {"clustering": "brown", "num_blocks": 4}, {"clustering": "one"}


def recipe(blocks: dict[str, Any], model: dict[str, Any], **train: Any) -> dict[str, dict[str, Any]]:
    return {"blocks": blocks, "model": {"dim": 8, "states_per_block": 4, **model}, "train": {**SMALL, **train}}


IN_DOUBLE = ["neural-block-factored"]
"""In float32 its losses depend on the machine in the fourth digit after twenty steps of Adam."""
GRADIENT = {
    "neural": recipe(BLOCKED, {"parameterization": "neural"}, ema=0.9, weight_decay=0.01),
    "neural-block-factored": recipe(
        {**BLOCKED, "reset": "eos"},
        {"transition": "block-factored", "embeddings": "factored", "target_network": True, "initialisation": "paper"},
        schedule="plateau",
        patience=1,
    ),
    "linear": recipe(
        DENSE,
        {"parameterization": "linear", "embeddings": "split", "start": "left", "emission_bias": False},
        windows="independent",
        state_dropout=0.0,
    ),
    "linear-block-factored": recipe(
        BLOCKED,
        {"parameterization": "linear", "transition": "block-factored", "emission_floor": 0.01},
        state_dropout_end=0.0,
        freeze_embeddings=0.3,
    ),
    "scalar": recipe(
        {"clustering": "cloned"},
        {"parameterization": "scalar", "transition": "table", "init_scale": 1.0, "states_per_block": 2},
        state_dropout=0.0,
        schedule="constant",
        clip=0.0,
    ),
    "layers": recipe(DENSE, {"network": "layers", "monolithic": True, "start": "free"}, state_dropout=0.0),
    "transformer": recipe(
        DENSE, {"parameterization": "transformer", "decoder_layers": 1, "decoder_heads": 2}, state_dropout=0.0
    ),
    # The best weights are those of an early check, and the rate falls before the run is stopped.
    "overshooting": recipe(
        BLOCKED,
        {"parameterization": "linear"},
        learning_rate=0.5,
        schedule="plateau",
        patience=1,
        checks_per_epoch=5,
    ),
    "uniform": recipe(
        {"clustering": "uniform", "num_blocks": 2},
        {"parameterization": "linear", "states_per_block": 6},
        dropout="columns",
        state_dropout=0.2,
    ),
}
SCALAR = recipe(DENSE, {"parameterization": "scalar", "transition": "table", "init_scale": 1.0})
EM = {
    "em": {"iterations": 2, "batch_size": 4, "window": 24},
    "em-minibatch": {"iterations": 2, "batch_size": 4, "window": 24, "batches_per_step": 2, "rate": 0.3},
    # The best tables are those of the pass before the one in which it is stopped.
    "em-overshooting": {
        "iterations": 6,
        "batch_size": 8,
        "window": 40,
        "batches_per_step": 1,
        "rate": 1.0,
        "pseudocount": 0.5,
    },
}
EM_STATES = {"em-overshooting": 12}
LVD_SCALAR = recipe(
    DENSE, {"parameterization": "scalar", "transition": "table"}, state_dropout=0.0, epochs=3, windows="independent"
)
LVD_LINEAR = recipe(DENSE, {"parameterization": "linear", "embeddings": "split"}, state_dropout=0.0, epochs=3)
LVD = {
    "lvd": {"cluster_tokens": 240, "joint_tokens": 1500, "iterations": 4},
    "lvd-counts": {
        "cluster_tokens": 240,
        "joint_tokens": 96,
        "iterations": 4,
        "estimation": "counts",
        "position": "before",
    },
}
WINDOWS = {"batch_size": 4, "window": 24, "epochs": 2}
BASELINES: dict[str, dict[str, Any]] = {
    "lstm": {**WINDOWS, "dim": 6, "learning_rate": 0.02, "checks_per_epoch": 2, "dropout": 0.1},
    "awd-lstm": {
        **WINDOWS,
        "embedding_dim": 6,
        "hidden_dim": 8,
        "num_layers": 2,
        "epochs": 3,
        "learning_rate": 2.0,
        "average_after": 1,
    },
    "feedforward": {**WINDOWS, "dim": 6, "order": 4, "learning_rate": 0.02, "checks_per_epoch": 2},
    # The best weights are those of the check at which it is stopped.
    "buys-hmm": {
        **WINDOWS,
        "num_states": 5,
        "transition_input": "add",
        "learning_rate": 0.3,
        "checks_per_epoch": 5,
        "patience": 1,
    },
}
DECODER = {"dim": 8, "layers": 2, "heads": 2, "hidden": 16}
DECODER_TRAINING = {"tokens": 22 * 96, "learning_rate": 0.01, "batch_size": 4, "window": 24, "checks": 3}

Loop = Callable[[Path | None, bool], Iterator[Event]]
"""From a folder, or none, and whether to resume, to the events of a training."""


@cache
def corpus() -> vlhmm.Corpus:
    return vlhmm.load_corpus(FIRST_EDITION / "corpus")


def model_of(name: str) -> vlhmm.Model:
    model = entry_points.recipe_model(GRADIENT[name], corpus())
    return model.double() if name in IN_DOUBLE else model


def loop_of(name: str) -> Loop:
    """A training that begins with a fresh model each time it is called."""
    if name in GRADIENT:
        settings = GRADIENT[name]
        return lambda out, resume: entry_points.gradient_events(model_of(name), settings, corpus(), out, resume)
    if name in LVD:
        settings = LVD_LINEAR if name == "lvd" else LVD_SCALAR
        return lambda out, resume: entry_points.lvd_events(
            entry_points.recipe_model(settings, corpus()), settings, LVD[name], TEACHER, corpus(), out, resume
        )
    if name in EM:
        settings = {**SCALAR, "model": {**SCALAR["model"], "states_per_block": EM_STATES.get(name, 4)}}
        return lambda out, resume: entry_points.em_events(
            entry_points.recipe_model(settings, corpus()), EM[name], corpus(), out, resume
        )
    if name in BASELINES:
        return lambda out, resume: entry_points.baseline_events(name, BASELINES[name], corpus(), out, resume)
    return lambda out, resume: entry_points.decoder_events(DECODER, DECODER_TRAINING, corpus(), out, resume)


LOOPS = [*GRADIENT, *LVD, *EM, *BASELINES, "decoder"]


def trained(loop: Loop, out: Path | None = None, resume: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The losses and checks by step, and the weights that are left."""
    losses: dict[int, float] = {}
    checks: dict[int, list[float]] = {}
    weights: dict[str, Tensor] = {}
    for event in loop(out, resume):
        if event.kind == "step":
            losses[event.step] = event.value
        elif event.kind == "check":
            checks[event.step] = [event.value, event.best]
        else:
            assert event.weights is not None
            weights = event.weights
    assert weights
    return {"losses": losses, "checks": checks}, weights


def stopped(loop: Loop, out: Path) -> None:
    """Runs it into `out` and interrupts it after STOP_AT steps, as Ctrl-C does."""
    for event in loop(out, False):
        if event.kind == "step" and event.step == STOP_AT:
            signal.raise_signal(signal.SIGINT)
        assert event.kind != "step" or event.step <= STOP_AT


def as_record(figures: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Any]:
    losses = {str(step): loss for step, loss in figures["losses"].items() if step <= NUM_LOSSES}
    checks = {str(step): perplexities for step, perplexities in figures["checks"].items()}
    return {"losses": losses, "checks": checks, "weights": digest_of(weights)}


def digest_of(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def differences(found: dict[str, Any], recorded: dict[str, Any], bitwise: bool) -> list[str]:
    """Weights are compared bit by bit or not at all: Adam moves one without a gradient (a bias before a softmax) by the sign
    of a rounding error, which no loss depends on."""
    compared = ("losses", "checks", "weights") if bitwise else ("losses", "checks")
    return [
        difference
        for name in compared
        for difference in records.json_differences(found[name], recorded[name], bitwise, name)
    ]


def since(step: int, recorded: dict[str, Any]) -> dict[str, Any]:
    """What was recorded of a training from that step on."""
    later = {
        name: {number: value for number, value in recorded[name].items() if int(number) >= step}
        for name in ("losses", "checks")
    }
    return {**recorded, **later}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def record() -> None:
    records.write_json(NAME, {name: as_record(*trained(loop_of(name))) for name in LOOPS})
