"""Trainings side by side on one device, as `vlhmm table run --jobs` runs them: what a step costs when others are made meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import torch

from bench.workloads import products_read
from experiments.side_by_side import StepsAhead
from vlhmm.capture import EAGER_CALLS
from vlhmm.cluster import Blocks, one_block
from vlhmm.models import build_blocked
from vlhmm.ops.recursion.tilings import no_cooperative_kernels
from vlhmm.training.presets import Recipe, preset
from vlhmm.training.step import Step

JOBS = (1, 2, 4, 8)
STEPS = 300
NUM_WINDOWS = 8
NUM_WORDS = {"lee2025": 32_000, "chiu2020": 10_000}


@dataclass(frozen=True)
class Beside:
    """So many trainings of one preset at once."""

    preset: str
    states: int
    precision: str
    """What matrix products read."""
    jobs: int
    waits: bool
    """Whether kernels may be used whose programs wait for one another; `vlhmm table run --jobs` does without."""
    milliseconds: float
    """All steps of all of them, divided by their number."""
    cores: float
    """That the program kept busy meanwhile: Python runs one thread at a time, so with one core busy the device waits for it."""


def works(quick: bool) -> dict[str, Recipe]:
    """Lee & Berg-Kirkpatrick's dense HMMs and Chiu & Rush's at 2^14 states."""
    blocked = preset("chiu2020-ptb")
    found = {name: preset(name) for name in ("lee2025-b", "lee2025-scalar", "lee2025-psi-mlp")}
    found["chiu2020-ptb"] = replace(blocked, model=replace(blocked.model, states_per_block=128))
    if not quick:
        return found
    return {
        name: replace(
            recipe,
            blocks=replace(recipe.blocks, num_blocks=3),
            model=replace(recipe.model, states_per_block=4, dim=8),
            train=replace(recipe.train, batch_size=3, window=5),
        )
        for name, recipe in found.items()
    }


def side_by_side(device: torch.device, quick: bool) -> Iterator[Beside]:
    for name, recipe in works(quick).items():
        blocks = 1 if recipe.blocks.clustering == "one" else recipe.blocks.num_blocks
        for jobs in JOBS[:2] if quick else JOBS:
            # Only kernels of dense HMMs are cooperative (grid barriers).
            for waits in (True, False) if blocks == 1 else (False,):
                taken, cores = _timed(name, recipe, jobs, waits, device, 2 if quick else STEPS, quick)
                states, reads = recipe.model.states_per_block * blocks, products_read(recipe.model.precision, device)
                yield Beside(name, states, reads, jobs, waits, taken, cores)


def _timed(
    name: str, recipe: Recipe, jobs: int, waits: bool, device: torch.device, steps: int, quick: bool
) -> tuple[float, float]:
    """Milliseconds a step, and busy cores. Each training has a thread and a stream of its own; the clock runs from when all of
    them are captured."""
    num_words = 30 if quick else NUM_WORDS[name.split("-")[0]]
    ready, done = threading.Barrier(jobs + 1), threading.Barrier(jobs + 1)
    failed: list[BaseException] = []

    def train(seed: int) -> None:
        try:
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            own_backward = torch.autograd.set_multithreading_enabled(False)
            own_kernels = nullcontext() if waits else no_cooperative_kernels()
            with own_backward, own_kernels, torch.cuda.stream(stream) if stream else nullcontext():
                step, windows = _training(recipe, num_words, device, seed)
                ahead = StepsAhead(stream)
                for number in range(EAGER_CALLS + 2 + steps):
                    if number == EAGER_CALLS + 2:
                        _wait(stream)
                        ready.wait()
                    step(next(windows), recipe.train.learning_rate, fresh=number == 0 or _independent(recipe))
                    ahead.wait()
                _wait(stream)
                done.wait()
        except BaseException as error:
            failed.append(error)
            ready.abort()
            done.abort()

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        begun, busy = time.perf_counter(), time.process_time()
        done.wait()
        seconds = time.perf_counter() - begun
        return 1e3 * seconds / (steps * jobs), (time.process_time() - busy) / seconds
    except threading.BrokenBarrierError:
        raise failed[0] from None
    finally:
        for thread in threads:
            thread.join()


def _wait(stream: torch.cuda.Stream | None) -> None:
    # Synchronise the stream, not the device: another thread may be in graph capture.
    if stream is not None:
        stream.synchronize()


def _independent(recipe: Recipe) -> bool:
    return recipe.train.windows == "independent"


def _training(recipe: Recipe, num_words: int, device: torch.device, seed: int) -> tuple[Step, Iterator[torch.Tensor]]:
    """Random words, in blocks of nearly equal size."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = recipe.blocks.num_blocks
    dense = recipe.blocks.clustering == "one"
    blocks = one_block(num_words) if dense else Blocks(np.arange(num_words) % num_blocks, num_blocks)
    model = build_blocked(recipe.model, blocks, eos_id=None, reset="carry", generator=generator)
    settings = recipe.train
    windows = torch.randint(num_words, (NUM_WINDOWS, settings.batch_size, settings.window), generator=generator)
    # On the CPU, from where training takes them.
    return Step(model.to(device), settings), cycle(windows)
