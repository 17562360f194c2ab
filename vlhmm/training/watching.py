"""A training run on the screen: a bar, and a line for each check."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

from rich.text import Text

from vlhmm.interrupts import announced_interrupts
from vlhmm.progress_bar import ProgressBar, Steps, console, progress_bar, short
from vlhmm.training.trainer import CheckEvent, Event, StepEvent, Stopped, run_to_end

Result = TypeVar("Result")

SMOOTHED_STEPS = 20
"""The loss on the bar is a running average over about so many steps."""


def shown_events(
    events: Generator[Any, None, Result], passes: int, max_seconds: float | None = None
) -> Generator[Any, None, Result]:
    """The same events, shown while they are passed on. `passes`: over the text; 0: not known. `max_seconds`: the time limit of the training."""
    with closing(events), progress_bar("training", None) as shown:
        steps, training = Steps(shown, "training"), _Training(shown, passes, max_seconds)
        while True:
            try:
                event = next(events)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            training(event)
            steps(event)
            yield event


def run_to_end_shown(
    events: Generator[Event, None, None], passes: int, progress: bool | None, max_seconds: float | None = None
) -> Stopped:
    """`run_to_end`, with a display if `progress` is true; None: where stderr is a terminal, and in a notebook."""
    if not (console(stderr=True).is_terminal if progress is None else progress):
        return run_to_end(events)
    with announced_interrupts():
        return run_to_end(shown_events(events, passes, max_seconds))


class _Training:
    def __init__(self, shown: ProgressBar, passes: int, max_seconds: float | None) -> None:
        self._shown, self._passes, self._max_seconds = shown, passes, max_seconds
        self._loss, self._num_steps = 0.0, 0
        self._first: tuple[float, int] | None = None

    def __call__(self, event: Any) -> None:
        match event:
            case StepEvent():
                self._step(event)
            case CheckEvent():
                self._shown.line(_check_line(event))

    def _step(self, event: StepEvent) -> None:
        if self._first is not None and event.tokens < self._first[1]:
            # Another run after the first.
            self._loss, self._num_steps, self._first = 0.0, 0, None
        self._num_steps += 1
        self._loss += (event.loss - self._loss) / min(self._num_steps, SMOOTHED_STEPS)
        now = time.monotonic()
        self._first = self._first or (now, event.tokens)
        elapsed = now - self._first[0]
        rate = (event.tokens - self._first[1]) / max(elapsed, 1e-9)
        epoch = min(self._passes, 1 + (event.step - 1) * self._passes // event.num_steps)
        of_passes = f"epoch {epoch}/{self._passes}" if self._passes else ""
        known = "states given" if event.joint else f"perplexity {math.exp(self._loss):,.1f}"
        note = f"loss {self._loss:.3f}  {known}  {short(rate)} tokens/s"
        left = None if self._max_seconds is None else max(0.0, self._max_seconds - elapsed)
        self._shown.update(event.step, event.num_steps, note, of_passes, left)


def _check_line(event: CheckEvent) -> Text:
    width = len(f"{event.num_steps:,}")
    text = Text(f"step {event.step:>{width},}/{event.num_steps:,}  ", style="dim")
    text.append(f"valid perplexity {event.valid_perplexity:>9,.1f}", style="not dim")
    if event.improved:
        text.append("  best", style="not dim green")
    return text
