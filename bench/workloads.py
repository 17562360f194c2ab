"""What is measured: inputs from a seed, and the float64 answers that every engine must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.precision import Precision

Work = Literal["W1", "W2", "W4", "W5"]
Step = Literal["W3", "W3b", "W3c", "W3d", "W3e"]
TransitionKind = Literal["softmax", "block-factored"]
Answer = dict[str, Tensor]

TITLES: dict[str, str] = {
    "W1": "log-likelihood",
    "W2": "gradient or expected counts",
    "W3": "training step, softmax",
    "W3b": "training step, block-factored",
    "W3c": "training step, 512 blocks",
    "W3d": "training step, 1,024 blocks",
    "W3e": "training step, best-ptb",
    "W4": "Viterbi with path",
    "W5": "posterior marginals",
    "PTB": "PTB epoch, the paper's setting",
    "PTBb": "PTB epoch, block-factored",
    "errors": "errors of the precisions",
    "memory": "memory at the highest",
    "first": "the first step, compilation included",
}

CHECKED_PATHS = 4
"""The best path is sought in float64 for so many sequences; the score of a path is checked for all."""


@dataclass(frozen=True)
class DenseSizes:
    states: int
    num_words: int
    batch: int
    length: int


@dataclass(frozen=True)
class StepSizes:
    """One training step: `num_blocks` blocks of `states_per_block` states, a part of them kept."""

    transition: TransitionKind
    num_blocks: int
    states_per_block: int
    state_dropout: float
    dim: int
    num_words: int
    batch: int
    window: int

    @property
    def states(self) -> int:
        return self.num_blocks * self.states_per_block

    @property
    def kept(self) -> int:
        """States of a block that a step uses."""
        return round((1 - self.state_dropout) * self.states_per_block)


@dataclass(frozen=True)
class Timed:
    """One engine's way to do one work."""

    run: Callable[[], Any]
    """The timed call. The clock stops when a CUDA device has done all it was asked; other waiting is the engine's own."""
    answer: Callable[[Any], Answer]
    """Its result as tensors with the names of the truth; not timed."""
    warm_ups: int = 2
    """Calls before the clock starts: they compile, and fill caches."""


def products_read(precision: Precision, device: torch.device) -> str:
    """What the matrix products of a row read: a CPU has but float32."""
    return precision if device.type == "cuda" else "float32"


class NotOffered(Exception):
    """The engine does not do this work, or not at this size."""


@dataclass(frozen=True)
class DenseInputs:
    """A random dense HMM and random tokens; every engine lays the tables out as it likes before the clock starts."""

    sizes: DenseSizes
    start: Float[Tensor, " Z"]
    transition: Float[Tensor, "Z Z"]
    emission: Float[Tensor, "X Z"]
    """p(x | z) at [x, z]."""
    tokens: Int[Tensor, "B T"]

    @property
    def device(self) -> torch.device:
        return self.start.device


def dense_inputs(sizes: DenseSizes, device: torch.device, seed: int = 0) -> DenseInputs:
    generator = torch.Generator(device).manual_seed(seed)

    def distribution(*shape: int, dim: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).softmax(dim)

    return DenseInputs(
        sizes,
        distribution(sizes.states, dim=0),
        distribution(sizes.states, sizes.states, dim=1),
        distribution(sizes.num_words, sizes.states, dim=0),
        torch.randint(sizes.num_words, (sizes.batch, sizes.length), generator=generator, device=device),
    )


class Truth:
    """The answers in float64, by a loop that shares no code with the package."""

    def __init__(self, inputs: DenseInputs) -> None:
        self.inputs = inputs
        emission = inputs.emission[inputs.tokens].double()
        self._tables = inputs.start.double(), inputs.transition.double(), emission

    @cached_property
    def _forward(self) -> tuple[Float[Tensor, "B T Z"], Float[Tensor, "B T"]]:
        start, transition, emission = self._tables
        filtered, totals = torch.empty_like(emission), torch.empty_like(emission[:, :, 0])
        for t in range(emission.shape[1]):
            joint = (filtered[:, t - 1] @ transition if t else start) * emission[:, t]
            totals[:, t] = joint.sum(1)
            filtered[:, t] = joint / totals[:, t, None]
        return filtered, totals

    @cached_property
    def _backward(self) -> tuple[Float[Tensor, "B T Z"], Float[Tensor, "Z Z"]]:
        """The posterior, and the expected transition counts."""
        _, transition, emission = self._tables
        filtered, totals = self._forward
        posterior, beta = torch.empty_like(filtered), torch.ones_like(filtered[:, 0])
        counts = torch.zeros_like(transition)
        for t in range(emission.shape[1] - 1, -1, -1):
            posterior[:, t] = filtered[:, t] * beta
            if t:
                ratio = beta * emission[:, t] / totals[:, t, None]
                counts.addmm_(filtered[:, t - 1].T, ratio)
                beta = ratio @ transition.T
        return posterior, counts.mul_(transition)

    def log_prob(self) -> Float[Tensor, " B"]:
        return self._forward[1].log().sum(1)

    def answer(self, work: Work) -> Answer:
        match work:
            case "W1":
                return {"log_prob": self.log_prob()}
            case "W2":
                posterior, counts = self._backward
                emission = torch.zeros(self.inputs.emission.shape, dtype=counts.dtype, device=counts.device)
                emission.index_add_(0, self.inputs.tokens.flatten(), posterior.flatten(0, 1))
                return {"transition": counts, "emission": emission}
            case "W4":
                return {"best_log_prob": self._best_log_prob()}
            case "W5":
                return {"posterior": self._backward[0]}

    def _best_log_prob(self) -> Float[Tensor, " C"]:
        """log p(x, z) of the best path, of the first sequences."""
        start, transition, emission = self._tables
        log_into = transition.log().T.contiguous()
        best = []
        for log_emission in emission[:CHECKED_PATHS].log():
            score = start.log() + log_emission[0]
            for t in range(1, log_emission.shape[0]):
                score = (log_into + score).amax(1) + log_emission[t]
            best.append(score.max())
        return torch.stack(best)

    def path_log_prob(self, path: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
        """log p(x, z) along the paths given."""
        start, transition, emission = self._tables
        emitted = emission.gather(2, path[:, :, None])[:, :, 0].log().sum(1)
        return start[path[:, 0]].log() + transition[path[:, :-1], path[:, 1:]].log().sum(1) + emitted


def error(work: Work, truth: Truth, answer: Answer) -> float:
    """How far an answer is from the truth, relative; NaN and wrong shapes are infinitely far.

    W1: the worst sequence (for an engine that gives only their sum: of the sum). W2, W5: sum of absolute differences
    over the sum of the truth. W4: how much worse the path found is than the best one, the worst sequence.
    """
    if work == "W4":
        return _path_error(truth, answer["path"])
    expected = truth.answer(work)
    if not answer or not set(answer) <= set(expected):
        raise ValueError(f"{work} is answered by {sorted(answer)}, but only {sorted(expected)} can be checked")
    return max(_relative(work, answer[name], expected[name]) for name in answer)


def _relative(work: Work, ours: Tensor, theirs: Tensor) -> float:
    ours = ours.to(theirs)
    if work == "W1":
        if ours.ndim == 0:
            theirs = theirs.sum()
        found = ((ours - theirs).abs() / theirs.abs()).max() if ours.shape == theirs.shape else None
    else:
        found = (ours - theirs).abs().sum() / theirs.sum() if ours.shape == theirs.shape else None
    return float(found) if found is not None and bool(found.isfinite()) else float("inf")


def _path_error(truth: Truth, path: Tensor) -> float:
    inputs = truth.inputs
    if path.shape != inputs.tokens.shape or int(path.min()) < 0 or int(path.max()) >= inputs.sizes.states:
        return float("inf")
    best = truth.answer("W4")["best_log_prob"]
    scores = truth.path_log_prob(path.to(inputs.device).long())
    # Beyond the checked ones a path can only be shown to be possible.
    gap = ((best - scores[: len(best)]).abs() / best.abs()).max()
    return float(gap) if bool(scores.isfinite().all()) else float("inf")


def tolerance(work: str, device: torch.device) -> float:
    """The largest error whose time is printed. CUDA: operands of 8 or 11 bits; CPU: float32 throughout."""
    precise = device.type == "cpu"
    match work:
        case "W2" | "W5":
            return 1e-4 if precise else 1e-2
        case "W4":
            # Rounding may prefer another path only if its score is equal up to rounding error.
            return 1e-6
        case "W3" | "W3b" | "W3c" | "W3d" | "W3e":
            return 1e-5 if precise else 3e-4
        case _:
            return 1e-6 if precise else 3e-4
