"""Several rows trained at once on one device: small models leave most of a GPU idle.

Each has a thread, and on a GPU a stream, of its own; kernels whose programs wait for one another are left to rows that run
alone. Rows end with their results; where a row's steps are timed, that is left for when nothing runs beside it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from experiments.row_settings import RowSettings, recipe_of
from experiments.rows import RowEvent, RowRun, run_row
from vlhmm.data import Corpus
from vlhmm.ops.recursion.tilings import no_cooperative_kernels
from vlhmm.training.trainer import LOG_STEPS, StepEvent


@dataclass(frozen=True)
class TrainingEnded:
    """Of one row; its last event before this one says how."""

    error: Exception | None


SideEvent = RowEvent | TrainingEnded

SOON, LATER = -1, 0
"""Priorities on a GPU. A baseline or an HMM without blocks is a long chain of small kernels: they take little of the device, but
behind the large ones of a blocked HMM each would wait its turn."""

STEPS_AHEAD = 4
"""A thread queues no more steps than that. One that fills its queue waits within the driver, and all the others with it."""


Runs = Sequence[tuple[RowRun, Corpus]]


def _none(_: RowRun) -> Runs:
    return ()


def train_side_by_side(
    runs: Runs,
    device: torch.device,
    jobs: int,
    max_seconds: float | None = None,
    *,
    force: bool = False,
    after: Callable[[RowRun], Runs] = _none,
) -> Iterator[tuple[RowRun, SideEvent]]:
    """Trains and scores rows, each on its corpus, `jobs` at a time, all together for `max_seconds`; `run_row` then adds
    times, or goes on. Where a row fails, `TrainingEnded` has its error, and the others get to their end.

    `force`: as in `run_row`; `after`: what else is to be run once a row has ended; it comes next.
    """
    events: SimpleQueue[tuple[RowRun, SideEvent]] = SimpleQueue()
    stopping = threading.Event()
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    streams: dict[int, SimpleQueue[torch.cuda.Stream | None]] = {}
    for priority in (SOON, LATER):
        streams[priority] = SimpleQueue()
        for _ in range(jobs):
            streams[priority].put(torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None)

    waiting = deque(runs)

    def train_next() -> None:
        run, corpus = waiting.popleft()
        error: Exception | None = None
        idle = streams[_priority(run.row.settings)]
        stream = idle.get()
        try:
            if stopping.is_set() or (deadline is not None and time.monotonic() >= deadline):
                return
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            training = run_row(run, corpus, device, force=force, max_seconds=left, alone=False)
            # Else all backward passes share a thread, and with it streams of the RNN library: one could not capture them while
            # another uses them.
            own_backward = torch.autograd.set_multithreading_enabled(False)
            ahead = StepsAhead(stream)
            own_kernels = no_cooperative_kernels() if jobs > 1 else nullcontext()
            with own_backward, own_kernels, torch.cuda.stream(stream) if stream else nullcontext():
                for event in training:
                    if isinstance(event, StepEvent):
                        ahead.wait()
                    if stopping.is_set():
                        training.close()
                        return
                    if not isinstance(event, StepEvent) or event.step % LOG_STEPS == 0:
                        events.put((run, event))
        except Exception as caught:
            error = caught
        finally:
            idle.put(stream)
            events.put((run, TrainingEnded(error)))

    with ThreadPoolExecutor(jobs) as pool:
        num_left = len(runs)
        for _ in runs:
            pool.submit(train_next)
        try:
            while num_left:
                run, event = events.get()
                yield run, event
                if isinstance(event, TrainingEnded):
                    more = after(run)
                    num_left += len(more) - 1
                    # What its trials have settled does not wait for the trials of all the others.
                    waiting.extendleft(reversed(more))
                    for _ in more:
                        pool.submit(train_next)
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _priority(settings: RowSettings) -> int:
    recipe = recipe_of(settings)
    return SOON if recipe is None or recipe.blocks.clustering == "one" else LATER


class StepsAhead:
    """Of a thread before its stream: `wait`, called after each step, keeps them at STEPS_AHEAD."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream
        self._ends: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        if self._stream is not None:
            self._ends.append(self._stream.record_event(torch.cuda.Event(blocking=True)))
            if len(self._ends) > STEPS_AHEAD:
                self._ends.popleft().synchronize()
