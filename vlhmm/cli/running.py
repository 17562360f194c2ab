"""A training run on the screen: a bar, a line for each check, events for TensorBoard."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from vlhmm.cli.show import ProgressBar, Steps, message, program, progress_bar, short
from vlhmm.reports import Plan, RunResults
from vlhmm.training.trainer import CheckEvent, StepEvent

SMOOTHED_STEPS = 20
"""The loss on the bar is a running average over about so many steps."""
INTERRUPTED = 130

Result = TypeVar("Result")


def watch_run(events: Generator[Any, None, Result], plan: Plan, tensorboard: Path | None = None) -> Result:
    """What a run returns, shown while it happens; with `tensorboard` the folder of its events."""
    writer = None if tensorboard is None else _TensorBoard(tensorboard)
    with closing(events), progress_bar("training", None) as shown:
        steps, training = Steps(shown, "training"), _Training(shown, plan)
        while True:
            try:
                event = next(events)
            except StopIteration as stop:
                result: Result = stop.value
                break
            training(event)
            steps(event)
            if writer is not None:
                writer(event)
    if writer is not None:
        writer.close()
    return result


def exit_status(results: RunResults, out: Path, *, by_same_command: bool = False) -> int:
    """The exit status of a command that has made this run; says how to go on with an interrupted one."""
    if results.stopped != "interrupted":
        return 0
    go_on = "the same command" if by_same_command else f"{program()} train --out {out} --resume"
    message(f"stopped at step {results.step:,} of {results.num_steps:,}; go on with: {go_on}")
    return INTERRUPTED


class _Training:
    def __init__(self, shown: ProgressBar, plan: Plan) -> None:
        self._shown = shown
        self._passes = plan.recipe.train.epochs if plan.em is None else plan.em.iterations
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
        rate = (event.tokens - self._first[1]) / max(now - self._first[0], 1e-9)
        epoch = min(self._passes, 1 + (event.step - 1) * self._passes // event.num_steps)
        known = "states given" if event.joint else f"perplexity {math.exp(self._loss):,.1f}"
        note = f"loss {self._loss:.3f}  {known}  {short(rate)} tokens/s"
        self._shown.update(event.step, event.num_steps, note, f"epoch {epoch}/{self._passes}")


def _check_line(event: CheckEvent) -> Text:
    width = len(f"{event.num_steps:,}")
    text = Text(f"step {event.step:>{width},}/{event.num_steps:,}  ", style="dim")
    text.append(f"valid perplexity {event.valid_perplexity:>9,.1f}", style="not dim")
    if event.improved:
        text.append("  best", style="not dim green")
    return text


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError('--tensorboard needs tensorboard: pip install "vlhmm[tensorboard]"') from None
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def __call__(self, event: Any) -> None:
        match event:
            case StepEvent():
                self._add("loss/train", event.loss, event.step)
            case CheckEvent():
                self._add("perplexity/valid", event.valid_perplexity, event.step)

    def _add(self, name: str, value: float, step: int) -> None:
        # Only with the first number: nothing is written where a run is refused.
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
