"""One rank of `python -m bench distributed`, which torchrun starts: `python -m bench.rank FILE SETTINGS`."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.ours import StepInputs, step_inputs
from bench.workloads import StepSizes
from vlhmm.distributed import ALONE, World, barrier, gather_objects, joined
from vlhmm.training.step import Step

WARM_UPS = 3
WORK_SECONDS = 0.03
REDUCED_BYTES = (1 << 12, 1 << 20, 1 << 22, 1 << 24)


@dataclass(frozen=True)
class RankStep:
    """A step over so many ranks, and what it is made of; the slowest rank of each step, the fastest of many steps: whatever else
    runs on the machine makes steps slower, and those of several ranks all the more."""

    ranks: int
    tokens: int
    """Of each rank."""
    parameters: int
    bytes: int
    """Of the gradients."""
    alone_ms: float
    """Ranks at work beside each other, without the sum."""
    together_ms: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.ranks * self.tokens / self.together_ms


@dataclass(frozen=True)
class Reduction:
    """The sum of buffers of one size over all ranks, by itself."""

    ranks: int
    bytes: int
    milliseconds: float


def rank_step(sizes: StepSizes, here: World, repeat: int) -> RankStep:
    """`sizes.batch`: of each rank. Both kinds of step by turns, so that they see the same machine."""
    inputs = step_inputs(replace(sizes, batch=sizes.batch * here.size), torch.device("cpu"))
    rows = slice(here.rank * sizes.batch, (here.rank + 1) * sizes.batch)
    alone = _stepping(inputs, ALONE, rows, sizes.batch)
    together = _stepping(inputs, here, rows, sizes.batch * here.size)
    for _ in range(WARM_UPS):
        alone()
        together()
    times = [(_slowest(alone, here), _slowest(together, here)) for _ in range(repeat)]
    parameters = [one for one in inputs.model.parameters() if one.requires_grad]
    return RankStep(
        here.size,
        sizes.batch * sizes.window,
        sum(one.numel() for one in parameters),
        sum(one.numel() * one.element_size() for one in parameters),
        1e3 * min(first for first, _ in times),
        1e3 * min(second for _, second in times),
    )


def _stepping(inputs: StepInputs, here: World, rows: slice, batch: int) -> Callable[[], None]:
    settings = replace(inputs.settings, batch_size=batch)
    step = Step(copy.deepcopy(inputs.model), settings, here)

    def run() -> None:
        window = inputs.windows[step.count % len(inputs.windows)][rows]
        step(window, settings.learning_rate, fresh=step.count == 0)

    return run


def reduction(num_bytes: int, here: World, repeat: int) -> Reduction:
    buffer = torch.zeros(num_bytes // 4)

    def run() -> None:
        dist.all_reduce(buffer)

    for _ in range(WARM_UPS):
        run()
    return Reduction(here.size, num_bytes, 1e3 * min(_slowest(run, here, _work) for _ in range(repeat)))


def _work() -> None:
    """Work before the all-reduce, as in a step: it evicts caches, and the scheduler does not favour a process that has just slept."""
    matrix = torch.ones(512, 512)
    end = time.perf_counter() + WORK_SECONDS
    while time.perf_counter() < end:
        matrix = matrix @ matrix / 512


def _slowest(run: Callable[[], None], here: World, before: Callable[[], None] | None = None) -> float:
    """Seconds on the slowest rank; ranks start at a barrier."""
    if before is not None:
        before()
    barrier(here)
    begun = time.perf_counter()
    run()
    return max(gather_objects(time.perf_counter() - begun, here))


def measured(settings: dict[str, Any], here: World) -> dict[str, Any]:
    batches, repeat = settings.pop("batches"), settings.pop("repeat")
    sizes = StepSizes(batch=1, **settings)
    steps = [rank_step(replace(sizes, batch=batch), here, repeat) for batch in batches]
    reduced = (*REDUCED_BYTES, steps[0].bytes) if here.size > 1 else ()
    reductions = [reduction(num_bytes, here, repeat) for num_bytes in reduced]
    return {
        "steps": [asdict(one) | {"tokens_per_second": one.tokens_per_second} for one in steps],
        "reductions": [asdict(one) for one in reductions],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined() as world:
        found = measured(json.loads(sys.argv[2]), world)
        if world.is_first:
            Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
