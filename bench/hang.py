"""Stress-tests cooperative kernels for deadlocks: `python -m bench hang`.

Threads with streams of different priorities train dense HMMs whose kernels are cooperative, as captured graphs that are replayed at
once; grids of as many programs as there are multiprocessors compete, with one another and with large kernels that are not cooperative. A
watchdog ends the process if no thread makes progress, and reports which kernels reached the bound of a wait.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bench.beside import _training as training_of
from experiments.side_by_side import StepsAhead
from vlhmm.capture import Graphed
from vlhmm.ops import waiting
from vlhmm.training.presets import preset

SILENT_SECONDS = 20.0
"""Without a step of anybody: a hang."""

STATES = (128, 256, 512, 1024, 2048)
"""Up to 256 sums have fewer parts than a warp reads at once, 2,048 do without the resident tile."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Phase:
    name: str
    outcome: str
    """"ended", "gave up" (a wait reached its bound) or "hung"."""
    seconds: float
    steps: dict[str, int]
    """Of each thread."""
    reports: list[str]
    """What kernels have reported."""


@dataclass
class Worker:
    name: str
    begin: Callable[[], Work]
    """In its own thread and stream: what it then repeats."""
    priority: int = 0
    steps: int = 0
    error: BaseException | None = None


def phases(device: torch.device, quick: bool) -> Iterator[tuple[str, list[Worker]]]:
    states = (3, 4) if quick else STATES
    yield "one after another", [_dense(f"states {number}", number, device, quick) for number in states[:1]]
    few = [_dense(f"few parts {seed}", states[seed % 2], device, quick, seed) for seed in range(2 if quick else 8)]
    yield "eight of 128 and 256 states", few
    mixed = [_dense(f"mixed {seed}", states[seed % len(states)], device, quick, seed) for seed in range(len(states))]
    yield "all sizes and large kernels", [*mixed, _products(device, quick)]
    if device.type == "cuda":
        yield "grids that only just fit", [_grids(seed, device) for seed in range(6)]
        both = [_grids(seed, device) for seed in range(3)]
        yield "grids, trainings and large kernels", [*both, *few[:3], _products(device, quick)]


def run(device: torch.device, seconds: float, quick: bool, ended: Callable[[list[Phase]], None]) -> list[Phase]:
    """All phases in about so many seconds; `ended` is given what is known before the process is ended for a hang."""
    found: list[Phase] = []
    every = list(phases(device, quick))
    for name, workers in every:
        found.append(_phase(name, workers, device, seconds / len(every)))
        if found[-1].outcome == "hung":
            ended(found)
            # A thread that waits for a kernel that never ends cannot be joined.
            os._exit(3)
    return found


def _phase(name: str, workers: list[Worker], device: torch.device, seconds: float) -> Phase:
    stopping = threading.Event()
    threads = [threading.Thread(target=_repeat, args=(one, device, stopping), daemon=True) for one in workers]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    steps, moved = -1, begun
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        now = time.perf_counter()
        if (total := sum(one.steps for one in workers)) != steps:
            steps, moved = total, now
        if now - begun > seconds or any(one.error for one in workers):
            stopping.set()
        # The first step compiles kernels.
        if now - moved > SILENT_SECONDS * (1 if all(one.steps for one in workers) else 6):
            # Threads that go on after all must not run beside what follows.
            stopping.set()
            return _told(name, "hung", now - begun, workers)
    outcome = "gave up" if any(isinstance(one.error, waiting.DeviceWaitError) for one in workers) else "ended"
    phase = _told(name, outcome, time.perf_counter() - begun, workers)
    for one in workers:
        if one.error is not None and outcome == "ended":
            raise one.error
        one.steps = 0
    return phase


def _told(name: str, outcome: str, seconds: float, workers: list[Worker]) -> Phase:
    reports = [f"{one.name}: {one.error}" for one in workers if one.error is not None]
    return Phase(name, outcome, round(seconds, 1), {one.name: one.steps for one in workers}, reports)


def _repeat(worker: Worker, device: torch.device, stopping: threading.Event) -> None:
    try:
        stream = torch.cuda.Stream(device, priority=worker.priority) if device.type == "cuda" else None
        with torch.autograd.set_multithreading_enabled(False), torch.cuda.stream(stream):
            step, ahead = worker.begin(), StepsAhead(stream)
            while not (worker.steps and stopping.is_set()):
                step()
                ahead.wait()
                worker.steps += 1
                waiting.check(device)
            if stream is not None:
                stream.synchronize()
            waiting.check(device)
    except BaseException as error:
        worker.error = error


def _dense(name: str, states: int, device: torch.device, quick: bool, seed: int = 0) -> Worker:
    """A training of a dense HMM, its steps captured."""

    def begin() -> Work:
        recipe = preset("lee2025-b")
        batch = (3, 5) if quick else (recipe.train.batch_size, recipe.train.window)
        model = replace(recipe.model, states_per_block=states, dim=8 if quick else recipe.model.dim)
        train = replace(recipe.train, batch_size=batch[0], window=batch[1])
        step, windows = training_of(replace(recipe, model=model, train=train), 30 if quick else 2000, device, seed)

        def work() -> None:
            step(next(windows), train.learning_rate, fresh=True)

        return work

    return Worker(name, begin, priority=-(seed % 3))


def _grids(seed: int, device: torch.device) -> Worker:
    """Forward passes and best paths of as many programs as there are multiprocessors, or as fit, as a graph."""

    def begin() -> Work:
        from vlhmm.ops.max_product import dense as max_product
        from vlhmm.ops.recursion import dense
        from vlhmm.ops.recursion.factors import Factors
        from vlhmm.ops.sizes import multiprocessors

        states = (128, 256, 512, 1024)[seed % 4]
        rows = 16 * (multiprocessors(device) // (states // 64))
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        begins = torch.full((rows, 32), -1, device=device)
        begins[:, 0] = 0
        factors = Factors(
            log_previous=torch.zeros(rows, states, device=device),
            log_inits=normal(1, states).log_softmax(1),
            init_of=begins,
            log_tiles=normal(1, states, states).log_softmax(2),
            tile_of=torch.zeros(rows, 32, dtype=torch.int64, device=device),
            log_emission=normal(rows, 32, states),
            lengths=torch.full((rows,), 32, device=device),
        )
        prepared, text = dense.prepare(factors.log_tiles[0], factors.log_inits, "bf16"), dense.text_of(factors)

        def passes() -> None:
            dense.forward(prepared, text, "bf16", keep=True)
            if seed % 2:
                max_product.max_product(
                    factors.sequences(torch.arange(min(rows, 200), device=device)), keep_backtrace=False
                )

        graphed = Graphed[None](device, eager_calls=1)
        graphed(passes)
        torch.cuda.current_stream().synchronize()
        return lambda: graphed(passes)

    return Worker(f"grid {seed}", begin, priority=-(seed % 2))


def _products(device: torch.device, quick: bool) -> Worker:
    """Large kernels that are not cooperative, and fill the device."""

    def begin() -> Work:
        size = 16 if quick else 8192
        left = torch.ones(size, size, device=device, dtype=torch.float32 if quick else torch.bfloat16)
        return lambda: left @ left

    return Worker("matrix products", begin, priority=-1)


def cooperative_nodes(device: torch.device) -> dict[str, Any]:
    """How many kernel nodes of a captured dense step are marked as cooperative, as the driver tells; why not, where it cannot be asked."""
    if device.type != "cuda":
        return {"why_not": f"the device is {device.type}, not cuda"}
    try:
        return _asked_of_driver(device)
    except Exception as error:
        return {"why_not": f"{type(error).__name__}: {error}"}


def _asked_of_driver(device: torch.device) -> dict[str, Any]:
    states = torch.zeros(1, 256, device=device)
    from vlhmm.ops.recursion import dense
    from vlhmm.ops.recursion.factors import Factors

    emission = torch.randn(40, 8, 256, device=device)
    begins = torch.zeros(40, 8, dtype=torch.int64, device=device)
    lengths = torch.full((40,), 8, device=device)
    factors = Factors(emission[:, 0], states, begins - 1, states.new_zeros(1, 256, 256), begins, emission, lengths)
    prepared, text = dense.prepare(factors.log_tiles[0], factors.log_inits, "bf16"), dense.text_of(factors)
    dense.forward(prepared, text, "bf16", keep=True)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        dense.forward(prepared, text, "bf16", keep=True)
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    _require(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _require(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
    kernels = cooperative = 0
    for node in nodes:
        kind = ctypes.c_int()
        _require(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value != 0:
            continue
        # CU_LAUNCH_ATTRIBUTE_COOPERATIVE is 2; a value takes 64 bytes.
        value = (ctypes.c_int * 16)()
        _require(driver.cuGraphKernelNodeGetAttribute(ctypes.c_void_p(node), 2, value))
        kernels, cooperative = kernels + 1, cooperative + bool(value[0])
    return {"kernel_nodes": kernels, "cooperative": cooperative}


def _require(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"the driver answers {status}")


def as_json(found: list[Phase]) -> list[dict[str, Any]]:
    return [asdict(phase) for phase in found]
