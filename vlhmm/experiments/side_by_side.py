"""Several rows trained at once on one device: small models leave most of a GPU idle.

Each has a thread, and on a GPU a stream, of its own. Only training is shared: what is measured of a row, its times above
all, is measured when nothing runs beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from vlhmm.data import Corpus
from vlhmm.experiments.row_training import TrainingEvent, train_row
from vlhmm.experiments.rows import RowRun, cut_training_text
from vlhmm.train import LOG_STEPS, DivergedError, StepEvent


@dataclass(frozen=True)
class TrainingEnded:
    """Of one row: to its end, or as far as it could go."""

    error: Exception | None


def train_side_by_side(
    runs: Sequence[RowRun], corpus: Corpus, device: torch.device, jobs: int, max_seconds: float | None = None
) -> Iterator[tuple[RowRun, TrainingEvent | TrainingEnded]]:
    """Trains rows, `jobs` at a time; `run_row` then finds their training done, or goes on with it."""
    events: SimpleQueue[tuple[RowRun, TrainingEvent | TrainingEnded]] = SimpleQueue()
    stopping = threading.Event()
    streams: SimpleQueue[torch.cuda.Stream | None] = SimpleQueue()
    for _ in range(jobs):
        streams.put(torch.cuda.Stream(device) if device.type == "cuda" else None)

    def train(run: RowRun) -> None:
        error: Exception | None = None
        stream = streams.get()
        try:
            text = cut_training_text(corpus, run.row.train_fraction)
            training = train_row(run.row.settings, run.seed, text, device, run.place, max_seconds, jobs)
            with torch.cuda.stream(stream) if stream else nullcontext():
                for event in training:
                    if stopping.is_set():
                        training.close()
                        break
                    if not isinstance(event, StepEvent) or event.step % LOG_STEPS == 0:
                        events.put((run, event))
        except DivergedError:
            # `run_row` meets it again and writes it down.
            pass
        except Exception as caught:
            error = caught
        streams.put(stream)
        events.put((run, TrainingEnded(error)))

    # Whoever sets the products' precision for a step sets it for all threads: it is the same for the whole of it.
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for run in runs:
                pool.submit(train, run)
            try:
                for _ in runs:
                    yield from _until_one_ends(events)
            finally:
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        torch.set_float32_matmul_precision(before)


def _until_one_ends(
    events: SimpleQueue[tuple[RowRun, TrainingEvent | TrainingEnded]],
) -> Iterator[tuple[RowRun, TrainingEvent | TrainingEnded]]:
    while True:
        run, event = events.get()
        if isinstance(event, TrainingEnded) and event.error is not None:
            raise event.error
        yield run, event
        if isinstance(event, TrainingEnded):
            return
