"""A training run on the screen: a bar, a line for each check, events for TensorBoard."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

from vlhmm.cli.show import message, program, size
from vlhmm.interrupts import INTERRUPTED
from vlhmm.reports import Plan, RunResults
from vlhmm.reports.export import folder_bytes, model_bytes
from vlhmm.training.run_folder import STATE
from vlhmm.training.trainer import CheckEvent, StepEvent
from vlhmm.training.watching import shown_events

Result = TypeVar("Result")


def watch_run(
    events: Generator[Any, None, Result],
    plan: Plan,
    out: Path,
    *,
    tensorboard: bool = False,
    by_same_command: bool = False,
    max_seconds: float | None = None,
) -> Result:
    """What a run into the folder `out` returns, shown while it happens; with `tensorboard` events are written there too.

    `max_seconds`: the time limit of its training.
    """
    writer = _TensorBoard(out / "tensorboard") if tensorboard else None
    passes = plan.recipe.train.epochs if plan.em is None else plan.em.iterations
    if plan.recipe.stages is not None:
        # Each stage has its own.
        passes = 0
    shown = shown_events(events, passes, max_seconds)
    try:
        while True:
            event = next(shown)
            if writer is not None:
                writer(event)
    except StopIteration as stop:
        result: Result = stop.value
    except KeyboardInterrupt:
        # Not between two steps: before the first, while held-out text is scored, or asked for twice.
        if (out / STATE).exists() or plan.recipe.stages is not None:
            message(f"what was trained is kept in {out}; go on with: {_go_on(out, by_same_command)}")
        raise
    if writer is not None:
        writer.close()
    return result


def exit_status(results: RunResults, out: Path, *, by_same_command: bool = False) -> int:
    """The exit status of a command that has made this run; says how to go on with an interrupted one."""
    if results.stopped != "interrupted":
        return 0
    message(f"stopped at step {results.step:,} of {results.num_steps:,}; go on with: {_go_on(out, by_same_command)}")
    return INTERRUPTED


def export_hint(out: Path) -> str:
    """What to type to get the model alone, and what that saves."""
    sizes = f"{size(model_bytes(out))} of {size(folder_bytes(out))}"
    return f"{program()} export {shlex.quote(str(out))} --out MODEL  ({sizes})"


def _go_on(out: Path, by_same_command: bool) -> str:
    return "the same command" if by_same_command else f"{program()} train --out {shlex.quote(str(out))} --resume"


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
