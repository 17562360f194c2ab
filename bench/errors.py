"""What each precision costs: log p of 64-token sequences against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bench import original
from bench.ours import Initialisation, dense_hmm, step_model
from bench.workloads import DenseSizes, StepSizes, TransitionKind, Truth, dense_inputs
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import score
from vlhmm.models import Model
from vlhmm.precision import Numerics, Precision, network_products

ALLOWED: dict[Precision, float] = {"bf16": 3e-4, "tf32": 3e-5, "highest": 1e-6}


@dataclass(frozen=True)
class ErrorRow:
    hmm: str
    states: int
    precision: Precision
    worst: float
    """The largest error of a sequence, relative; infinite where it is not a number."""
    allowed: float


def error_rows(device: torch.device, quick: bool) -> Iterator[ErrorRow]:
    """A CPU has but one precision, float32, and is held to that of `highest`."""
    precisions: list[Precision] = ["bf16", "tf32", "highest"] if device.type == "cuda" else ["highest"]
    for states in (24,) if quick else (512, 1024, 4096):
        yield from _dense(_dense_sizes(states, quick), device, precisions)
    blocked: list[tuple[StepSizes, Initialisation]] = [
        (_blocked_sizes("softmax", quick), "paper"),
        (_blocked_sizes("softmax", quick), "code"),
        (_blocked_sizes("block-factored", quick), "paper"),
        (_blocked_sizes("block-factored", quick), "code"),
    ]
    for sizes, initialisation in blocked:
        yield from _blocked(sizes, initialisation, device, precisions)


def _dense_sizes(states: int, quick: bool) -> DenseSizes:
    return DenseSizes(states, num_words=50 if quick else 32_000, batch=6 if quick else 64, length=64)


def _blocked_sizes(transition: TransitionKind, quick: bool) -> StepSizes:
    """As many states as a step of W3 keeps; the truth holds all pairs of them in float64."""
    if quick:
        return StepSizes(transition, 5, 8, 0.0, dim=16, num_words=50, batch=3, window=64)
    return StepSizes(transition, 128, 128, 0.0, dim=256, num_words=10_000, batch=16, window=64)


def _dense(sizes: DenseSizes, device: torch.device, precisions: list[Precision]) -> Iterator[ErrorRow]:
    inputs = dense_inputs(sizes, device)
    expected = Truth(inputs).log_prob()
    for precision in precisions:
        with torch.no_grad():
            found = dense_hmm(inputs, precision).log_prob(inputs.tokens)
        yield ErrorRow("dense", sizes.states, precision, _worst(found, expected), ALLOWED[precision])


def _blocked(
    sizes: StepSizes, initialisation: Initialisation, device: torch.device, precisions: list[Precision]
) -> Iterator[ErrorRow]:
    """Everything between parameters and log p: networks, normaliser, emissions, recursion."""

    def model(precision: Precision) -> Model:
        return step_model(sizes, device, torch.Generator().manual_seed(0), initialisation, precision)

    words = torch.randint(sizes.num_words, (sizes.batch, sizes.window), generator=torch.Generator().manual_seed(1))
    tokens = words.to(device)
    expected = original.log_probs(model("highest"), tokens)
    for precision in precisions:
        found = _log_probs(model(precision), tokens, precision)
        yield ErrorRow(
            f"{sizes.transition}, {initialisation}'s start",
            sizes.states,
            precision,
            _worst(found, expected),
            ALLOWED[precision],
        )


def _log_probs(model: Model, tokens: Int[Tensor, "B T"], precision: Precision) -> Float[Tensor, " B"]:
    """As in training."""
    with network_products(precision, tokens.device):
        batch = Batch(tokens, torch.full_like(tokens[:, 0], tokens.shape[1]))
        return (
            score(model.tables(numerics=Numerics.training(precision)).detach(), batch).token_log_probs.double().sum(1)
        )


def _worst(found: Tensor, expected: Tensor) -> float:
    error = ((found.double() - expected).abs() / expected.abs()).max()
    return float(error) if bool(error.isfinite()) else float("inf")
