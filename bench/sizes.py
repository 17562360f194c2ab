"""The sizes that are measured: the published ones of each device, and tiny ones to try the command."""

from __future__ import annotations

import torch

from bench.workloads import DenseSizes, Step, StepSizes, TransitionKind, Work

CUDA_STATES: dict[Work, tuple[int, ...]] = {
    "W1": (512, 1024, 4096, 16384),
    "W2": (512, 1024, 4096),
    "W4": (512, 4096),
    "W5": (512, 1024),
}
CPU_STATES = (512, 1024)
QUICK_STATES = (24,)


def default_works(device: torch.device, quick: bool) -> tuple[str, ...]:
    """Everything on a GPU; on a CPU what is done there, leaving out training at full size."""
    dense = ("W1", "W2", "W4", "W5")
    if quick:
        return (*dense, "W3", "W3b", "errors", "memory")
    if device.type != "cuda":
        return dense
    return (*dense, "W3", "W3b", "PTB", "PTBb", "errors", "memory", "first")


def dense_sizes(work: Work, device: torch.device, quick: bool, states: tuple[int, ...] | None) -> list[DenseSizes]:
    if quick:
        return [DenseSizes(number, num_words=50, batch=6, length=7) for number in states or QUICK_STATES]
    if device.type == "cuda":
        return [DenseSizes(number, num_words=32_000, batch=200, length=64) for number in states or CUDA_STATES[work]]
    return [DenseSizes(number, num_words=10_000, batch=16, length=64) for number in states or CPU_STATES]


def step_sizes(work: Step, quick: bool) -> StepSizes:
    """W3: the paper's setting; W3b: more states per block, fewer of them kept, and more tokens."""
    paper = work == "W3"
    transition: TransitionKind = "softmax" if paper else "block-factored"
    if quick:
        return StepSizes(transition, 5, 8, 0.5 if paper else 0.75, dim=16, num_words=50, batch=3, window=6)
    if paper:
        return StepSizes(transition, 128, 256, 0.5, dim=256, num_words=10_000, batch=16, window=32)
    return StepSizes(transition, 128, 512, 0.75, dim=256, num_words=10_000, batch=32, window=64)
