"""Where the time of a call goes: its kernels one by one, beside what its parts need at least."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

import torch
from rich.table import Table
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from bench.floor import Needs, Rates, dense_needs
from bench.measure import seconds_of, wait
from bench.ours import Ours, step_inputs, timed_step
from bench.sizes import dense_sizes, step_sizes
from bench.workloads import Step, StepSizes, Timed, Work, dense_inputs

profiled = (*get_args(Step), *get_args(Work))
TRAINING: dict[str, Any] = {"ema": 0.998, "clip": 5.0, "weight_decay": 0.3}
"""As the longest runs are trained."""
CALLS = 5
"""Under the profiler."""


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel in one call; on a CPU those of an operation."""

    name: str
    count: float
    microseconds: float


@dataclass(frozen=True)
class Profile:
    work: str
    sizes: dict[str, Any]
    milliseconds: float
    """Of one call that is waited for, the median."""
    in_a_row_ms: float
    """Of one of many calls without synchronisation, as in training."""
    kernels: list[Kernel]
    """The longest first."""
    order: list[tuple[str, float]]
    """Every kernel of the last call in order, with its microseconds."""
    parts_ms: dict[str, float]
    """What each part of the work needs at least: bytes that must move, or operations."""

    @property
    def kernels_ms(self) -> float:
        return sum(kernel.microseconds for kernel in self.kernels) / 1e3


def profile_of(work: str, device: torch.device, rates: Rates, states: int, repeat: int, quick: bool) -> Profile:
    timed, sizes, parts = _made(work, device, rates, states, quick)
    for _ in range(timed.warm_ups + 2):
        timed.run()
    alone = median(seconds_of(timed.run, device) for _ in range(repeat))
    wait(device)
    begun = time.perf_counter()
    for _ in range(repeat):
        timed.run()
    wait(device)
    in_a_row = (time.perf_counter() - begun) / repeat
    kernels, order = _kernels(timed, device)
    floors = {name: 1e3 * needs.seconds(rates) for name, needs in parts.items()}
    return Profile(work, sizes, 1e3 * alone, 1e3 * in_a_row, kernels, order, floors)


def _made(
    work: str, device: torch.device, rates: Rates, states: int, quick: bool
) -> tuple[Timed, dict[str, Any], dict[str, Needs]]:
    for step in get_args(Step):
        if work == step:
            sizes = step_sizes(step, quick)
            inputs = step_inputs(sizes, device, **TRAINING)
            return timed_step(inputs), vars(sizes), step_parts(sizes, inputs.model.num_parameters, rates)
    for query in get_args(Work):
        if work == query:
            (dense,) = dense_sizes(query, device, quick, None if quick else (states,))
            return (
                Ours().timed(query, dense_inputs(dense, device)),
                vars(dense),
                {work: dense_needs(query, dense, rates)},
            )
    raise ValueError(f"unknown work {work!r}")


def _kernels(timed: Timed, device: torch.device) -> tuple[list[Kernel], list[tuple[str, float]]]:
    cuda = device.type == "cuda"
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(CALLS):
            timed.run()
        wait(device)
    if not cuda:
        operations = [
            Kernel(op.key, op.count / CALLS, op.self_cpu_time_total / CALLS) for op in profiler.key_averages()
        ]
        return sorted(operations, key=lambda op: -op.microseconds), []
    events = [event for event in profiler.events() or [] if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    runs = [(event.name, event.time_range.elapsed_us()) for event in events]
    counts, totals = Counter[str](), Counter[str]()
    for name, microseconds in runs:
        counts[name] += 1
        totals[name] += microseconds
    kernels = [Kernel(name, counts[name] / CALLS, total / CALLS) for name, total in totals.most_common()]
    return kernels, runs[-(len(runs) // CALLS) :]


def step_parts(sizes: StepSizes, num_parameters: int, rates: Rates) -> dict[str, Needs]:
    """The parts of a step one by one. Each reads its inputs and writes its results once, forward and backward."""
    kept, tokens, dim = sizes.num_blocks * sizes.kept, sizes.batch * sizes.window, sizes.dim
    features = 4.0 * kept * dim
    cells = float(tokens * sizes.kept**2)
    others = sizes.num_blocks if sizes.transition == "block-factored" else kept
    return {
        # Rows and their gradient, each read and written.
        "embedding rows": Needs(bytes=4 * features),
        # Two products in each of the networks for leaving and for emission, their features, and the gradients of both.
        "networks": Needs(matmul_flops=2 * 3 * 4.0 * kept * dim**2, bytes=2 * 4 * features),
        "normaliser": Needs(matmul_flops=3 * 2.0 * kept * others * dim, bytes=4 * features),
        "tiles": Needs(matmul_flops=3 * 2 * cells * dim, bytes=5 * cells * rates.operand_bytes),
        "emission": Needs(matmul_flops=3 * 2.0 * sizes.kept * sizes.num_words * dim, bytes=2 * features),
        # Parameter, gradient, both moments and the average are read, all but the gradient written; its norm comes first.
        "update": Needs(bytes=4.0 * num_parameters * (1 + 5 + 4)),
    }


def kernel_table(profile: Profile) -> Table:
    shown = Table(
        title=f"{profile.work}: {profile.milliseconds:.3f} ms a call, {profile.in_a_row_ms:.3f} ms in a row, "
        f"kernels {profile.kernels_ms:.3f} ms"
    )
    shown.add_column("kernel", no_wrap=True, max_width=100)
    for heading in ("count", "us a call", "part"):
        shown.add_column(heading, justify="right")
    total = sum(kernel.microseconds for kernel in profile.kernels) or 1.0
    for kernel in profile.kernels[:50]:
        part = f"{kernel.microseconds / total:.1%}"
        shown.add_row(kernel.name[:100], f"{kernel.count:g}", f"{kernel.microseconds:.1f}", part)
    return shown


def part_table(profile: Profile) -> Table:
    shown = Table(title=f"{profile.work}: the floor of each part")
    shown.add_column("part")
    shown.add_column("ms", justify="right")
    for name, milliseconds in profile.parts_ms.items():
        shown.add_row(name, f"{milliseconds:.3f}")
    shown.add_row("together", f"{sum(profile.parts_ms.values()):.3f}")
    return shown
