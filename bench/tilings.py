"""Tilings of the kernels of a block-factored training step: each kernel's time by each, checked against float64.

What `vlhmm.ops.blocked_recursion.tilings.tiling_for` says of a number of states was the fastest of those tried on one GPU; here they are
tried on another. Kernels are independent of one another, so a run tries one way of each at once.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from bench.measure import wait as wait_for
from bench.sizes import step_sizes
from bench.workloads import Step, StepSizes
from vlhmm.ops.blocked_recursion import BlockedFactors, blocked_recursion_by_kernels, reference
from vlhmm.ops.sizes import power_of_2
from vlhmm.precision import Precision
from vlhmm.transitions import BlockSoftmaxTransition

REPEAT = 5
VALUE_ERROR, GRADIENT_ERROR = 3e-4, 2e-2
"""The largest of bf16, relative: of log p of a sequence, and of a gradient by its norm."""

Change = dict[str, int | bool]
"""Fields of a tiling, and other values for them."""

STEPS: dict[int, list[tuple[int, int, int]]] = {
    128: [(128, 4, 4), (128, 3, 8), (64, 5, 4)],
    256: [(128, 3, 8), (128, 3, 4), (64, 4, 4), (64, 5, 4), (64, 6, 8), (64, 4, 8)],
    512: [(64, 3, 8), (64, 3, 4), (32, 6, 4), (32, 5, 8), (64, 2, 8)],
}
"""By states of a group as a power of two: rows or columns of a piece, stages, warps."""
TILES: dict[int, list[tuple[int, int, int, int]]] = {
    128: [(128, 64, 8, 3), (64, 64, 4, 3), (128, 32, 8, 4), (64, 32, 4, 4)],
    256: [(128, 64, 8, 3), (64, 64, 4, 2), (64, 32, 4, 4), (128, 32, 8, 4), (64, 64, 8, 3), (64, 64, 4, 3)],
    512: [(64, 32, 8, 4), (64, 64, 8, 2), (64, 32, 8, 3), (64, 64, 8, 3), (32, 32, 8, 3)],
}
"""Rows, width, warps, stages."""
SUMS: list[tuple[int, int, bool, int, int, int]] = [
    (128, 64, True, 8, 5, 264),
    (64, 64, True, 4, 4, 528),
    (128, 64, True, 8, 3, 264),
    (128, 64, True, 8, 4, 528),
    (64, 64, True, 8, 5, 264),
    (128, 32, True, 8, 5, 264),
]
"""Rows, states of the other group at a time, whether two products with one tile, warps, stages, programs."""
MOVES = [(1024, 4), (2048, 4), (2048, 8), (4096, 8), (512, 4)]
"""Numbers of a program and warps, of the update."""


@dataclass(frozen=True)
class Tried:
    """One tiling of one kernel."""

    work: str
    kernel: str
    changes: Change
    """From the way in use; none: that itself."""
    microseconds: float | None
    """None: it was not measured."""
    error: float | None
    """Of everything that comes out of the kernels, relative to float64."""
    message: str = ""


def ways_of(states: int) -> dict[str, list[Change]]:
    """By kernel, the way in use first."""
    size = max(16, power_of_2(states))
    ways: dict[str, list[Change]] = {name: [{}] for name in ("make_tiles", "forward", "backward", "accumulate")}
    for rows, width, warps, stages in TILES.get(size, []):
        ways["make_tiles"].append({"tile_rows": rows, "tile_width": width, "tile_warps": warps, "tile_stages": stages})
    for piece, stages, warps in STEPS.get(size, []):
        ways["forward"].append({"forward_rows": piece, "forward_stages": stages, "forward_warps": warps})
        ways["backward"].append({"backward_columns": piece, "backward_stages": stages, "backward_warps": warps})
    # Tiny groups are for a try of the command.
    for rows, inner, two, warps, stages, programs in SUMS if size in TILES else SUMS[1:2]:
        ways["accumulate"].append(
            {"sum_rows": min(rows, size), "sum_inner": min(inner, size), "sum_two": two}
            | {"sum_warps": warps, "sum_stages": stages, "sum_programs": programs}
        )
    return ways


def factors_of(sizes: StepSizes, device: torch.device) -> BlockedFactors:
    """A window that goes on from another: random features, tokens of any block."""
    generator = torch.Generator(device).manual_seed(0)
    batch, length, blocks, kept, dim = sizes.batch, sizes.window, sizes.num_blocks, sizes.kept, sizes.dim

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator, device=device) * scale).requires_grad_()

    target = torch.randint(blocks, (batch, length), generator=generator, device=device)
    # The states over which beliefs are distributions are appended to the others.
    first = blocks + torch.arange(batch, device=device)
    transition = BlockSoftmaxTransition(
        normal((blocks + batch) * kept, dim, scale=2.0 / dim**0.5),
        normal(blocks * kept, dim),
        normal(blocks, dim),
        normal(blocks),
    )
    return BlockedFactors(
        normal(batch, kept).detach().log_softmax(1),
        normal(blocks, kept).detach().log_softmax(1),
        torch.full_like(target, -1),
        transition.operands(),
        torch.cat([first[:, None], target[:, :-1]], dim=1),
        target,
        normal(batch, length, kept),
        torch.full((batch,), length, device=device),
    )


def results(run: Callable[[BlockedFactors], Tensor], factors: BlockedFactors) -> list[Tensor]:
    """log p of every sequence, and the gradients of their mean."""
    transition = factors.transition
    leaves = [transition.out, transition.into, transition.block_weight, transition.block_bias, factors.log_emission]
    asked = [leaf for leaf in leaves if leaf is not None]
    log_probs = run(factors)
    gradients = torch.autograd.grad(log_probs, asked, torch.full_like(log_probs, -1 / log_probs.numel()))
    return [log_probs.detach().sum(1), *gradients]


def by_kernels(precision: Precision, changes: Change) -> Callable[[BlockedFactors], Tensor]:
    from vlhmm.ops.blocked_recursion.tilings import tiling_for

    def run(factors: BlockedFactors) -> Tensor:
        tiling = replace(tiling_for(factors.num_states, precision), **changes)  # type: ignore[arg-type]
        return blocked_recursion_by_kernels(factors, precision, tiling).token_log_probs

    return run


def in_float64(factors: BlockedFactors) -> list[Tensor]:
    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().double().requires_grad_()

    transition = factors.transition
    given = (transition.into, transition.block_weight, transition.block_bias)
    into, weight, bias = (leaf(tensor) for tensor in given if tensor is not None)
    exact = replace(
        transition,
        out=leaf(transition.out),
        into=into,
        block_weight=weight,
        block_bias=bias,
    )
    plain = replace(
        factors,
        log_previous=factors.log_previous.double(),
        log_inits=factors.log_inits.double(),
        log_emission=leaf(factors.log_emission),
        transition=exact,
    )
    return results(lambda given: reference.blocked_recursion(given)[0], plain)


def error_of(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest, as a part of what is allowed: at most 1 is right."""
    log_probs, *gradients = (ours.double() for ours in found)
    worst = [float(((log_probs - exact[0]) / exact[0]).abs().max()) / VALUE_ERROR]
    for ours, theirs in zip(gradients, exact[1:], strict=True):
        worst.append(float((ours - theirs).norm() / theirs.norm()) / GRADIENT_ERROR)
    # `max` would ignore NaN.
    return max(worst) if all(one == one for one in worst) else float("inf")


def compile_all(works: Sequence[Step], quick: bool, precision: Precision) -> None:
    """Every way once in processes of their own, side by side: Triton keeps what it compiles on disk."""
    tried = [(work, number) for work in works for number in range(len(_rounds(step_sizes(work, quick).kept)))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(tried), os.cpu_count() or 1), mp_context=context) as pool:
        wait([pool.submit(_compile, work, quick, precision, number) for work, number in tried])


def _compile(work: Step, quick: bool, precision: Precision, number: int) -> None:
    sizes = step_sizes(work, quick)
    factors = factors_of(sizes, torch.device("cuda"))
    for change in _rounds(sizes.kept)[number].values():
        _fails(factors, precision, change)


def _rounds(states: int) -> list[dict[str, Change]]:
    """One way of each kernel; where a kernel has no more, the one in use."""
    ways = ways_of(states)
    return [dict(zip(ways, tried, strict=True)) for tried in zip_longest(*ways.values(), fillvalue={})]


def step_tilings(work: Step, device: torch.device, quick: bool, precision: Precision) -> list[Tried]:
    sizes = step_sizes(work, quick)
    factors = factors_of(sizes, device)
    exact = in_float64(factors)
    found = list[Tried]()
    for number, tried in enumerate(_rounds(sizes.kept)):
        # A kernel that has no more ways goes on in the one in use.
        asked = {kernel: change for kernel, change in tried.items() if change or number == 0}
        messages = {kernel: _fails(factors, precision, change) if change else "" for kernel, change in asked.items()}
        together: Change = {}
        for kernel, change in asked.items():
            together |= {} if messages[kernel] else change
        error = error_of(results(by_kernels(precision, together), factors), exact)
        times = _microseconds(partial(results, by_kernels(precision, together), factors), device)
        for kernel, change in asked.items():
            if messages[kernel]:
                found.append(Tried(work, kernel, change, None, None, messages[kernel]))
            else:
                found.append(Tried(work, kernel, change, times.get(kernel), error))
    return found


def _fails(factors: BlockedFactors, precision: Precision, change: Change) -> str:
    try:
        results(by_kernels(precision, change), factors)
    except Exception as error:
        # Errors such as too much shared memory, each with an exception class of its own.
        return str(error).splitlines()[0][:100] or type(error).__name__
    return ""


def update_tilings(work: Step, device: torch.device, quick: bool) -> list[Tried]:
    """The update of one tensor as large as the state embeddings, against its specification."""
    from vlhmm.ops.parameter_update import AdamW, Group, Moved, launch
    from vlhmm.ops.parameter_update import reference as specification

    sizes = step_sizes(work, quick)
    adam, shape = AdamW(0.9, 0.999, 1e-8, 0.3), (sizes.states, sizes.dim)
    weight, rate = torch.tensor(0.002, device=device), torch.tensor(1e-3, device=device)

    def group(dtype: torch.dtype) -> Group:
        generator = torch.Generator(device).manual_seed(0)
        values = [torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(5)]
        step = torch.full((), 9.0, device=device)
        return Group(rate, [Moved(values[0], values[1], values[2], values[3].square(), step, values[4])])

    exact = group(torch.float64)
    specification.update([exact], adam, 5.0, weight)
    found, in_use = list[Tried](), launch.TILING
    try:
        for block, warps in MOVES[:2] if quick else MOVES:
            launch.TILING = launch.Tiling(block, warps)
            ours = group(torch.float32)
            launch.update([ours], adam, 5.0, weight)
            worst = 0.0
            for name in ("parameter", "exp_avg", "exp_avg_sq", "average"):
                mine, theirs = (getattr(one.members[0], name).double() for one in (ours, exact))
                worst = max(worst, float((mine - theirs).abs().max() / theirs.abs().max()) / 1e-6)
            times = _microseconds(partial(launch.update, [ours], adam, 5.0, weight), device)
            change: Change = {} if in_use == launch.TILING else {"block": block, "num_warps": warps}
            found.append(Tried(work, "move", change, times.get("move"), worst))
    finally:
        launch.TILING = in_use
    return found


def _microseconds(call: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """The median time of each kernel in a call, those of one name added up; on a CPU, which interprets them, none."""
    if device.type != "cuda":
        return {}
    call()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEAT):
            call()
        wait_for(device)
    events = [event for event in profiler.events() or [] if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    each = len(events) // REPEAT
    by_name = defaultdict[str, list[float]](list)
    for number in range(REPEAT):
        of_call = defaultdict[str, float](float)
        for event in events[number * each : (number + 1) * each]:
            # That of the normaliser over blocks comes first.
            name = "normaliser" if event.name == "forward" and "normaliser" not in of_call else event.name
            of_call[name] += event.time_range.elapsed_us()
        for name, microseconds in of_call.items():
            by_name[name].append(microseconds)
    return {name: median(times) for name, times in by_name.items()}


def tiling_table(found: list[Tried]) -> Table:
    """By kernel, the fastest that is right marked."""
    shown = Table(title="tilings of the kernels; an error of 1 is the largest allowed")
    for heading in ("work", "kernel", "tiling"):
        shown.add_column(heading)
    for heading in ("us", "error"):
        shown.add_column(heading, justify="right")
    best = dict[tuple[str, str], float]()
    for one in found:
        if one.microseconds is not None and one.error is not None and one.error <= 1:
            key = (one.work, one.kernel)
            best[key] = min(best.get(key, float("inf")), one.microseconds)
    for one in sorted(found, key=lambda one: (one.work, one.kernel)):
        changes = ", ".join(f"{name}={value}" for name, value in one.changes.items()) or "as it is"
        fastest = one.microseconds is not None and best.get((one.work, one.kernel)) == one.microseconds
        figure = one.message or ("" if one.microseconds is None else f"{one.microseconds:.1f}")
        error = "" if one.error is None else f"{one.error:.2g}"
        shown.add_row(one.work, one.kernel, changes, figure + (" *" if fastest else ""), error)
    return shown
