"""Rows of tables while they run: read their text, train them one by one or side by side, and show how far they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vlhmm.cli.show import duration, message, progress_bar, short

if TYPE_CHECKING:
    import torch

    from experiments.plan import RunPlan
    from experiments.row_events import RowStopped
    from experiments.rows import RowDone, RowEvent, RowRun
    from vlhmm.data import Corpus


class RowRunner:
    """Runs rows on one device, within one limit of time."""

    def __init__(
        self,
        device: torch.device,
        jobs: int,
        max_seconds: float | None,
        data_dir: Path | None,
        runs: Path,
        *,
        keeps: bool = True,
    ) -> None:
        """`keeps`: results and training runs are still there afterwards."""
        self.device, self.jobs, self.max_seconds, self.data_dir, self.runs = device, jobs, max_seconds, data_dir, runs
        self._keeps = keeps
        self.done: list[RowDone] = []
        self.failed: list[Exception] = []
        """Of rows beside which others went on."""
        self._begun = time.monotonic()
        self._corpora: dict[str, Corpus] = {}

    def __call__(self, plan: RunPlan, *, force: bool = False) -> int | None:
        """Runs all that is planned, with `force` what has a result too; the exit status if it did not all get to the end."""
        from experiments.rows import RowDone, run_row

        if plan.num_found:
            message(f"{plan.num_found} of {plan.num_found + len(plan.first)} rows have their results already")
        waiting = deque(plan.first)
        if self.jobs > 1:
            waiting, force = deque(self._side_by_side(plan, force)), False
        while waiting:
            one = waiting.popleft()
            left = self._seconds_left()
            if left is not None and left <= 0:
                message(f"out of time before {one.label!r}; the same command goes on")
                return 0
            events = run_row(one, self._read(one.table.corpus), self.device, force=force, max_seconds=left)
            last = _watch(events, one.label, self._keeps)
            if not isinstance(last, RowDone):
                return 130 if last.reason == "interrupted" else 0
            self.done.append(last)
            waiting.extend(plan.after(one))
        return None

    def _side_by_side(self, plan: RunPlan, force: bool) -> list[RowRun]:
        """Trains rows together, one bar for all; those that are left have to be timed, or did not get to their end."""
        from experiments.row_events import Working
        from experiments.rows import RowDone
        from experiments.side_by_side import TrainingEnded, train_side_by_side
        from vlhmm.training.trainer import CheckEvent, StepEvent

        progress: dict[Path, tuple[int, int]] = {}
        best: dict[Path, tuple[str, float]] = {}
        left: dict[Path, RowRun] = {}
        working = ""

        def with_text(runs: list[RowRun]) -> list[tuple[RowRun, Corpus]]:
            left.update((run.folder, run) for run in runs)
            return [(run, self._read(run.table.corpus)) for run in runs]

        events = train_side_by_side(
            with_text(plan.first),
            self.device,
            self.jobs,
            self._seconds_left(),
            force=force,
            after=lambda run: with_text(plan.after(run)),
        )
        with progress_bar(f"rows, {self.jobs} at a time", None) as shown:
            for run, event in events:
                match event:
                    case StepEvent():
                        progress[run.folder] = event.step, event.num_steps
                    case CheckEvent():
                        best[run.folder] = run.label, event.best_perplexity
                    case Working():
                        working = f"{run.label}: {event.what}"
                    case RowDone():
                        message(f"{run.label}: {_summary(event)}{_written_to(event, self._keeps)}")
                        if run.is_timed(event.result):
                            self.done.append(event)
                            del left[run.folder]
                        best.pop(run.folder, None)
                    case TrainingEnded(error=Exception() as error):
                        message(f"{run.label}: failed ({error}); the others go on")
                        self.failed.append(error)
                        del left[run.folder]
                note = ", ".join(f"{name} {value:,.1f}" for name, value in best.values()) or working
                steps, num_steps = (
                    (sum(of_each) for of_each in zip(*progress.values(), strict=True)) if progress else (0, 0)
                )
                shown.update(steps, num_steps or None, note, f"{len(left)} rows, {self.jobs} at a time")
        return list(left.values())

    def _seconds_left(self) -> float | None:
        return None if self.max_seconds is None else max(0.0, self.max_seconds - (time.monotonic() - self._begun))

    def _read(self, source: str) -> Corpus:
        if source not in self._corpora:
            self._corpora[source] = _read_text(source, self.data_dir, self.runs)
        return self._corpora[source]


def _read_text(source: str, data_dir: Path | None, runs: Path) -> Corpus:
    """A table's corpus, tokenized first where it has to be."""
    from experiments.texts import read_text
    from vlhmm.data.prepare import Progress

    with progress_bar(f"reading {source}", None) as shown:
        for step in read_text(source, data_dir, runs):
            if not isinstance(step, Progress):
                return step
            shown.update(step.bytes_read, step.bytes_total, f"{short(step.num_tokens)} tokens", f"tokenizing {source}")
    raise AssertionError("reading always ends with the corpus")


def _watch(events: Iterator[RowEvent], name: str, keeps: bool) -> RowDone | RowStopped:
    """Shows a row while it runs."""
    from experiments.row_events import RowStopped, Working
    from experiments.rows import RowDone
    from vlhmm.training.trainer import CheckEvent, StepEvent

    begun = time.monotonic()
    best = ""
    with progress_bar(name, None) as shown:
        for event in events:
            match event:
                case StepEvent():
                    shown.update(event.step, event.num_steps, f"loss {event.loss:.3f}{best}", name)
                case CheckEvent():
                    best = f"  best valid perplexity {event.best_perplexity:,.1f}"
                case Working():
                    shown.update(event.done, event.total, event.what, name)
                case RowDone():
                    took = duration(time.monotonic() - begun)
                    message(f"{name}: {_summary(event)}, {took}{_written_to(event, keeps)}")
                    return event
                case RowStopped():
                    then = "goes on" if keeps else "begins anew"
                    message(f"{name}: stopped at step {event.step:,} of {event.num_steps:,}; the same command {then}")
                    return event
    raise AssertionError("a row always ends with RowDone or RowStopped")


def _written_to(done: RowDone, keeps: bool) -> str:
    return f" -> {done.path}" if keeps else ""


def _summary(done: RowDone) -> str:
    from experiments.quantities import QUANTITIES, written

    result = done.result
    if result.status == "diverged":
        return f"diverged ({result.message})"
    shown = [name for name in ("train", "valid", "test") if name in result.measured]
    return ", ".join(f"{QUANTITIES[name].heading} {written(name, result.measured[name])}" for name in shown)
