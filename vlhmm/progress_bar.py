"""How far a long computation is, for a person: a bar on a terminal or in a notebook, lines now and then in a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from vlhmm.progress import Note, Progress

Result = TypeVar("Result")

FILE_WIDTH = 200
"""Characters of a line where no terminal says how wide it is: a pipe has no right edge to wrap at."""
LINE_SECONDS = 30.0
"""Between two lines of progress in a file."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Tokens are printed as they are: no markup, no highlighting, no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    # A notebook is no terminal either, but rich knows its width.
    known = stream.isatty() or "COLUMNS" in os.environ or Console().is_jupyter
    return _Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=None if known else FILE_WIDTH)


def short(count: int | float) -> str:
    """12,345,678 as 12.3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / limit * (10 if unit == 'k' else 1):.1f}{unit}"
    return f"{count:,.0f}"


class _Left(ProgressColumn):
    """The time that is left, in few characters: that of the rest of the work, or up to the time limit if that comes first."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        limits = [task.time_remaining, None if end is None else max(0.0, end - time.monotonic())]
        left = min((limit for limit in limits if limit is not None), default=None)
        if left is None:
            return Text("--:-- left", style="dim")
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes:02d}:{seconds:02d} left")


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[ProgressBar]:
    """A bar on stderr that disappears when it is done; a line now and then where stderr is no terminal."""
    shown = console(stderr=True)
    columns = (
        SpinnerColumn(style="cyan"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20 if shown.width >= 100 else 6, complete_style="cyan", finished_style="cyan"),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}", style="bold"),
        _Left(),
    )
    with Bars(*columns, console=shown, transient=True, disable=not shown.is_terminal, refresh_per_second=4) as progress:
        yield ProgressBar(progress, progress.add_task(description, total=total, note="", end=None))


class ProgressBar:
    """One task of a rich progress display."""

    def __init__(self, progress: Bars, task: Any) -> None:
        self._progress, self._task = progress, task
        self._last_line = time.monotonic()

    def update(
        self,
        done: int,
        total: int | None = None,
        note: str = "",
        description: str | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """`seconds_left`: until a time limit, whatever is left to do; None: there is none."""
        end = None if seconds_left is None else time.monotonic() + seconds_left
        changes: dict[str, Any] = {"completed": done, "note": note, "end": end}
        if total is not None:
            changes["total"] = total
        if description is not None:
            changes["description"] = description
        self._progress.update(self._task, **changes)
        if self._progress.disable and time.monotonic() - self._last_line >= LINE_SECONDS:
            task = self._progress.tasks[0]
            part = f" {task.percentage:.0f}%" if task.total else ""
            self.line(" ".join(f"{task.description}{part} {note}".split()))
            self._last_line = time.monotonic()

    def line(self, text: str | Text, style: str | None = None) -> None:
        """A line above the bar, on stderr."""
        self._progress.console.print(text, style=style, soft_wrap=True)


def watch(steps: Generator[Any, None, Result], description: str) -> Result:
    """What the steps return; their progress as a bar, their notes as lines on stderr."""
    with progress_bar(description, None) as shown:
        show_steps = Steps(shown, description)
        while True:
            try:
                event = next(steps)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            show_steps(event)


class Steps:
    """Shows what a generator yields, as a bar and lines above it."""

    def __init__(self, shown: ProgressBar, description: str) -> None:
        self._shown, self._part, self._begun = shown, description, time.monotonic()

    def __call__(self, event: Any) -> None:
        match event:
            case Note(text):
                self._shown.line(text)
            case Progress(what, done, total, unit, amount, note, seconds_left):
                if what != self._part:
                    self._part, self._begun = what, time.monotonic()
                if unit:
                    count = done if amount is None else amount
                    rate = f"{short(count / max(time.monotonic() - self._begun, 1e-9))} {unit}/s"
                    note = f"{note}  {rate}" if note else rate
                self._shown.update(done, total, note, what, seconds_left)
