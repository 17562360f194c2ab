"""Cost against length, batch, states, states of a block and blocks, one at a time around the settings of W1, W2, W3 and W3b."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import torch

from bench.floor import Rates, dense_needs, step_needs
from bench.measure import seconds_of
from bench.ours import QUERY_PRECISION, STEP_PRECISION, Ours, step_inputs, timed_step
from bench.sizes import step_sizes
from bench.workloads import DenseSizes, Step, StepSizes, Timed, dense_inputs, products_read

Axis = Literal["states", "batch", "length", "states_per_block", "num_blocks"]
REPEAT = 5

DENSE_AXES: dict[Axis, tuple[int, ...]] = {
    "states": (256, 512, 1024, 2048, 4096, 8192, 16384),
    "batch": (1, 8, 64, 200, 800),
    "length": (16, 64, 256, 1024),
}
MAX_STATES_WITH_COUNTS = 8192
STEP_AXES: dict[Axis, tuple[int, ...]] = {
    "num_blocks": (32, 64, 128, 256, 512),
    "states_per_block": (128, 256, 512, 1024, 2048),
    "batch": (4, 32, 128),
    "length": (16, 64, 256),
}
"""States of a block before dropout."""
SOFTMAX_AXES: dict[Axis, tuple[int, ...]] = {
    "num_blocks": (32, 64, 128, 256),
    "states_per_block": (64, 128, 256, 512),
}
QUICK: dict[Axis, tuple[int, ...]] = {
    "states": (8, 16),
    "batch": (1, 2),
    "length": (3, 6),
    "num_blocks": (2, 4),
    "states_per_block": (4, 8),
}


@dataclass(frozen=True)
class Point:
    """One size along one axis; all other sizes are those of the work."""

    work: str
    axis: Axis
    value: int
    sizes: dict[str, Any]
    precision: str
    """What matrix products read."""
    floor_ms: float
    milliseconds: float | None
    message: str = ""


def points(device: torch.device, rates: Rates, seconds: float, quick: bool) -> Iterator[Point]:
    """What is not reached within `seconds` is left out, with the reason. Answers at these sizes are not checked."""
    end = time.perf_counter() + seconds
    for work, axis, value, sizes in _sizes(quick):
        if isinstance(sizes, DenseSizes):
            needs, precision = dense_needs("W1" if work == "W1" else "W2", sizes, rates), QUERY_PRECISION
        else:
            needs, precision = step_needs(sizes, rates), STEP_PRECISION
        reads = products_read(precision, device)
        point = Point(work, axis, value, vars(sizes), reads, 1e3 * needs.seconds(rates), None)
        if time.perf_counter() > end:
            yield replace(point, message=f"not run: {seconds:.0f} s were over")
            continue
        try:
            yield replace(point, milliseconds=_measured(work, sizes, device))
        except torch.OutOfMemoryError:
            yield replace(point, message="out of memory")


def _sizes(quick: bool) -> Iterator[tuple[str, Axis, int, DenseSizes | StepSizes]]:
    dense = DenseSizes(16, 50, 4, 6) if quick else DenseSizes(1024, 32_000, 200, 64)
    for axis, values in _axes(DENSE_AXES, quick):
        for value in values:
            for work in ("W1", "W2"):
                if work == "W1" or axis != "states" or value <= MAX_STATES_WITH_COUNTS:
                    yield work, axis, value, replace(dense, **{axis: value})
    steps: list[tuple[Step, dict[Axis, tuple[int, ...]]]] = [("W3b", STEP_AXES), ("W3", SOFTMAX_AXES)]
    for step, axes in steps:
        for axis, values in _axes(axes, quick):
            for value in values:
                changed: dict[str, Any] = {"window" if axis == "length" else axis: value}
                yield step, axis, value, replace(step_sizes(step, quick), **changed)


def _axes(axes: dict[Axis, tuple[int, ...]], quick: bool) -> list[tuple[Axis, tuple[int, ...]]]:
    return [(axis, QUICK[axis] if quick else values) for axis, values in axes.items()]


def _measured(work: str, sizes: DenseSizes | StepSizes, device: torch.device) -> float:
    timed: Timed
    if isinstance(sizes, DenseSizes):
        timed = Ours().timed("W1" if work == "W1" else "W2", dense_inputs(sizes, device))
    else:
        timed = timed_step(step_inputs(sizes, device))
    for _ in range(timed.warm_ups):
        timed.run()
    return 1e3 * median(seconds_of(timed.run, device) for _ in range(REPEAT))
