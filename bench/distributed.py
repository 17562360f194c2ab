"""Steps of training over several processes: on a CPU by torchrun and gloo; on a GPU what the path costs in a world of one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table

from bench.measure import seconds_of
from bench.ours import STEPS_CHECKED, StepInputs, step_inputs, step_model
from bench.scaling_model import CLUSTERS, Link, predicted
from bench.sizes import step_sizes
from bench.workloads import Step as Work
from bench.workloads import StepSizes
from vlhmm.distributed import World, decided
from vlhmm.training.reduction import FlatGradients
from vlhmm.training.step import Step

ALLOWED = 0.2
"""Of what a prediction may miss a measurement by."""
CPU_SIZES = {
    "transition": "block-factored",
    "num_blocks": 64,
    "states_per_block": 128,
    "state_dropout": 0.5,
    "dim": 64,
    "num_words": 8_000,
    "window": 32,
}
CPU_BATCHES = (2, 8, 32)
"""Sequences of each process: from steps that the sum rules to steps that it hardly touches."""
GPU_WORKS: tuple[Work, ...] = ("W3e", "W3c")
CPU_REPEAT = 60
GPU_TOKENS = (2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
REPEAT = 20


@dataclass(frozen=True)
class Check:
    """What the model says of a step over several processes, beside the step."""

    ranks: int
    tokens: int
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


@dataclass(frozen=True)
class GpuStep:
    """A step of one GPU: plain, and with the path of several ranks in a world of one, which includes what ranks decide together
    after it."""

    work: str
    tokens: int
    plain_ms: float
    distributed_ms: float
    copy_ms: float
    """Of the gradients to where they are summed: the memory passes of the sum, without the messages."""
    bytes: int
    """Of the gradients."""

    @property
    def overhead(self) -> float:
        return self.distributed_ms / self.plain_ms - 1


def on_cpu(quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Steps of 1 and of 2 processes of one thread each, the sum by itself, and what the model makes of these."""
    sizes = CPU_SIZES | (
        {"num_blocks": 3, "states_per_block": 4, "dim": 8, "num_words": 30, "window": 6} if quick else {}
    )
    settings = sizes | {"batches": (1, 2) if quick else CPU_BATCHES, "repeat": 3 if quick else CPU_REPEAT}
    found = [_launched(ranks, settings) for ranks in (1, 2)]
    steps = [step for one in found for step in one["steps"]]
    reductions = found[1]["reductions"]
    link = Link.fitted(2, [(one["bytes"], one["milliseconds"] / 1e3) for one in reductions])
    checks = [
        Check(2, step["tokens"], step["alone_ms"] + 1e3 * link.all_reduce(2, step["bytes"]), step["together_ms"])
        for step in found[1]["steps"]
    ]
    return {
        "steps": steps,
        "reductions": reductions,
        "link": [asdict(link)],
        "checks": [asdict(one) | {"error": one.error, "allowed": ALLOWED} for one in checks],
        "models": [_gradients(work, quick) for work in ("W3b", *GPU_WORKS)],
    }


def _gradients(work: Work, quick: bool) -> dict[str, Any]:
    """What a step of a work on a GPU sums: it takes no GPU to know."""
    model = step_model(step_sizes(work, quick), torch.device("cpu"), torch.Generator().manual_seed(0))
    sizes = [one.numel() * one.element_size() for one in model.parameters() if one.requires_grad]
    return {"work": work, "states": model.support.num_states, "bytes": sum(sizes)}


def _launched(ranks: int, settings: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *launch, "-m", "bench.rank", str(file), json.dumps(settings)]
        ran = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"{ranks} processes ended with status {ran.returncode}: {ran.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def on_gpu(device: torch.device, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """The step with tokens from few to many, with and without the path of several ranks, and what the model says of clusters."""
    made = list[GpuStep]()
    with _world_of_one(device):
        for work in GPU_WORKS[:1] if quick else GPU_WORKS:
            sizes = step_sizes(work, quick)
            batches = [sizes.batch] if quick else [tokens // sizes.window for tokens in GPU_TOKENS]
            made += [_gpu_step(work, replace(sizes, batch=batch), device, 3 if quick else REPEAT) for batch in batches]
    rows = [
        asdict(row) | {"work": one.work, "efficiency": row.efficiency}
        for cluster in CLUSTERS
        for one in made
        for row in [predicted(cluster, one.tokens, one.plain_ms, one.bytes, one.copy_ms)]
    ]
    return {
        "gpu_steps": [asdict(one) | {"overhead": one.overhead} for one in made],
        "clusters": [asdict(one) for one in CLUSTERS],
        "predicted": rows,
    }


@contextmanager
def _world_of_one(device: torch.device) -> Iterator[None]:
    # gloo carries the collective decisions of the training loop at every step.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _gpu_step(work: str, sizes: StepSizes, device: torch.device, repeat: int) -> GpuStep:
    inputs = step_inputs(sizes, device)
    plain, several = (Step(copy.deepcopy(inputs.model), inputs.settings) for _ in range(2))
    # As `Step` does it where there are others.
    several._flat = flat = FlatGradients(several.parameters, World())
    several.loss = flat.loss
    runs = [_run(plain, inputs), _deciding(_run(several, inputs))]
    for run in runs:
        for _ in range(STEPS_CHECKED):
            run()
    times = [[seconds_of(run, device) for run in runs] for _ in range(repeat)]
    plain_ms, distributed_ms = (1e3 * median(column) for column in zip(*times, strict=True))
    gradients = [torch.zeros_like(one) for one in several.parameters]
    copies = [seconds_of(lambda: flat.copy(gradients), device) for _ in range(repeat)]
    return GpuStep(work, sizes.batch * sizes.window, plain_ms, distributed_ms, 1e3 * median(copies), flat.num_bytes)


def _run(step: Step, inputs: StepInputs) -> Callable[[], None]:
    windows = cycle(inputs.windows)
    return lambda: step(next(windows), inputs.settings.learning_rate, fresh=step.count == 0)


def _deciding(run: Callable[[], None]) -> Callable[[], None]:
    """With what the loop asks all ranks after every step: of a signal, of the time limit, of a save."""

    def both() -> None:
        run()
        decided([False, False, False])

    return both


def tables(found: dict[str, list[dict[str, Any]]]) -> Iterator[Table]:
    """What was measured and predicted."""
    if "steps" in found:
        shown = _table(
            "training step over processes of one thread",
            "processes",
            "tokens of each",
            "alone, ms",
            "together, ms",
            "tokens/s",
        )
        for step in found["steps"]:
            times = (f"{step[name]:.1f}" for name in ("alone_ms", "together_ms"))
            shown.add_row(str(step["ranks"]), f"{step['tokens']:,}", *times, f"{step['tokens_per_second']:,.0f}")
        yield shown
        shown = _table(
            "the model beside the measurement",
            "processes",
            "tokens of each",
            "predicted, ms",
            "measured, ms",
            "off by",
            "",
        )
        for one in found["checks"]:
            verdict = "" if abs(one["error"]) <= one["allowed"] else f"above {one['allowed']:.0%}"
            times = (f"{one[name]:.1f}" for name in ("predicted_ms", "measured_ms"))
            shown.add_row(str(one["ranks"]), f"{one['tokens']:,}", *times, f"{one['error']:+.1%}", verdict)
        yield shown
        return
    shown = _table(
        "a step on one GPU", "work", "tokens", "plain, ms", "world of one, ms", "overhead", "copy, ms", "MB reduced"
    )
    for step in found["gpu_steps"]:
        figures = (f"{step['plain_ms']:.3f}", f"{step['distributed_ms']:.3f}", f"{step['overhead']:+.1%}")
        shown.add_row(
            step["work"], f"{step['tokens']:,}", *figures, f"{step['copy_ms']:.3f}", f"{step['bytes'] / 1e6:.1f}"
        )
    yield shown
    shown = _table("predicted efficiency", "machines", "work", "tokens of a GPU", "step, ms", "sum, ms", "efficiency")
    for row in found["predicted"]:
        figures = (f"{row['compute_ms']:.2f}", f"{row['reduce_ms']:.2f}", f"{row['efficiency']:.0%}")
        shown.add_row(row["cluster"], row["work"], f"{row['tokens']:,}", *figures)
    yield shown


def _table(title: str, *columns: str) -> Table:
    shown = Table(title=title)
    for column in columns:
        shown.add_column(column, justify="right")
    return shown
