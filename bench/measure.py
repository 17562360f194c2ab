"""Timing: calls of the engines are interleaved, and an engine with a wrong answer is not timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import torch

from bench.workloads import Answer, NotOffered, Timed

MAX_SECONDS = 10.0
"""An engine's measurements of one row end when they have taken so long."""
SLOW = 0.2
"""Seconds of a call to which it makes no difference whose data the caches hold."""


@dataclass(frozen=True)
class Result:
    """One engine in one row."""

    engine: str
    milliseconds: tuple[float, ...] = ()
    """Every measurement; none where the answer is wrong or there is none."""
    error: float | None = None
    """Of the answer, relative to float64."""
    message: str = ""
    """Why there is no time."""
    precision: str = ""
    """What its products read, where that is known."""

    @property
    def median(self) -> float | None:
        return median(self.milliseconds) if self.milliseconds else None


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    wait(device)
    begun = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begun


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(
    engines: Mapping[str, Callable[[], Timed]],
    error_of: Callable[[Answer], float],
    tolerance: float,
    device: torch.device,
    repeat: int,
    max_seconds: float = MAX_SECONDS,
) -> list[Result]:
    """Each engine's answer is checked first; those that are right are timed in turns, so that all see the same machine, every
    time the second of two calls. Of an engine that needs longer than `max_seconds` the call that was checked counts."""
    results, right = {}, {}
    taken: dict[str, list[float]] = {}
    threads = torch.get_num_threads()
    for name, make in engines.items():
        results[name], timed, seconds = _checked(name, make, error_of, tolerance, device)
        # Importing a peer can change the number of threads of the whole process.
        torch.set_num_threads(threads)
        if timed is not None:
            right[name] = timed
            taken[name] = [seconds] if seconds >= max_seconds else []
    for _ in range(repeat):
        for name, timed in right.items():
            if sum(taken[name]) < max_seconds:
                # A warm-up call: the caches still hold the data of the previous engine.
                if not taken[name] or taken[name][-1] < SLOW:
                    timed.run()
                taken[name].append(seconds_of(timed.run, device))
    for name, times in taken.items():
        results[name] = replace(results[name], milliseconds=tuple(1e3 * one for one in times))
    return list(results.values())


def _checked(
    name: str,
    make: Callable[[], Timed],
    error_of: Callable[[Answer], float],
    tolerance: float,
    device: torch.device,
) -> tuple[Result, Timed | None, float]:
    """The result, the engine if its answer is right, and the seconds of the last call."""
    seconds = 0.0
    try:
        timed = make()
        for _ in range(timed.warm_ups):
            wait(device)
            begun = time.perf_counter()
            found = timed.run()
            wait(device)
            seconds = time.perf_counter() - begun
        error = error_of(timed.answer(found))
    except NotOffered as reason:
        return Result(name, message=f"not offered: {reason}"), None, 0.0
    # A peer may fail in any way; the others, and ours, are still worth measuring.
    except Exception as failure:
        first_line = (str(failure).splitlines() or [""])[0]
        return Result(name, message=f"failed: {type(failure).__name__}: {first_line[:120]}"), None, 0.0
    if not error <= tolerance:
        return Result(name, error=error, message=f"wrong: off by {error:.1e}, allowed {tolerance:.0e}"), None, 0.0
    return Result(name, error=error), timed, seconds
