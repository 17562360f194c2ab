"""The sizes that are measured: the published ones of each device, and tiny ones to try the command."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.workloads import DenseSizes, Step, StepSizes, TransitionKind, Work

CUDA_STATES: dict[Work, tuple[int, ...]] = {
    "W1": (512, 1024, 4096, 16384),
    "W2": (512, 1024, 4096),
    "W4": (512, 4096),
    "W5": (512, 1024),
}
CPU_STATES = (512, 1024)
SMALL_AND_LARGE = (8, 64, 512, 1024)
"""Of `python -m bench cpu`."""
QUICK_STATES = (24,)
STEPS: tuple[Step, ...] = ("W3", "W3b", "W3c", "W3d", "W3e")


def default_works(device: torch.device, quick: bool) -> tuple[str, ...]:
    """Everything on a GPU; on a CPU what is done there, leaving out training at full size."""
    dense = ("W1", "W2", "W4", "W5")
    if quick:
        return (*dense, *STEPS, "errors", "memory")
    if device.type != "cuda":
        return dense
    return (*dense, *STEPS, "PTB", "PTBb", "errors", "memory", "first")


def dense_sizes(work: Work, device: torch.device, quick: bool, states: tuple[int, ...] | None) -> list[DenseSizes]:
    if quick:
        return [DenseSizes(number, num_words=50, batch=6, length=7) for number in states or QUICK_STATES]
    if device.type == "cuda":
        return [DenseSizes(number, num_words=32_000, batch=200, length=64) for number in states or CUDA_STATES[work]]
    return [DenseSizes(number, num_words=10_000, batch=16, length=64) for number in states or CPU_STATES]


@dataclass(frozen=True)
class _Blocks:
    number: int
    states: int
    dropout: float


_BLOCK_FACTORED: dict[Step, _Blocks] = {
    "W3b": _Blocks(128, 512, 0.75),
    "W3c": _Blocks(512, 256, 0.25),
    "W3d": _Blocks(1024, 256, 0.25),
    "W3e": _Blocks(128, 512, 0.25),
}
"""Few of the states kept; many blocks, as the longest runs have; the preset best-ptb."""


def step_sizes(work: Step, quick: bool) -> StepSizes:
    """W3: the paper's setting; the others have more states, and more tokens."""
    if quick:
        transition: TransitionKind = "softmax" if work == "W3" else "block-factored"
        dropout = {"W3": 0.5, "W3b": 0.75}.get(work, 0.25)
        return StepSizes(transition, 5, 8, dropout, dim=16, num_words=50, batch=3, window=6)
    if work == "W3":
        return StepSizes("softmax", 128, 256, 0.5, dim=256, num_words=10_000, batch=16, window=32)
    blocks = _BLOCK_FACTORED[work]
    return StepSizes(
        "block-factored", blocks.number, blocks.states, blocks.dropout, dim=256, num_words=10_000, batch=32, window=64
    )
