"""What commands print: results to stdout, messages and progress to stderr; plain text where no terminal is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from vlhmm.progress import duration as duration

Result = TypeVar("Result")

FILE_WIDTH = 200
"""Characters of a line where no terminal says how wide it is: a pipe has no right edge to wrap at."""
BAR_WIDTH = 24
NUMBER_WIDTH = 6


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Tokens are printed as they are: no markup, no highlighting, no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else FILE_WIDTH
    return _Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def message(text: str) -> None:
    """One line for the person, on stderr."""
    style = "bold red" if text.startswith("error:") else None
    console(stderr=True).print(text, style=style, soft_wrap=True)


def line(text: str | Text = "", style: str | None = None) -> None:
    """One line of the result; a terminal breaks it between words, a pipe gets it whole."""
    shown = console()
    shown.print(text, style=style, soft_wrap=not shown.is_terminal)


def print_json(answer: Any, **question: Any) -> None:
    """One JSON value on one line of stdout, as `as_json` makes it."""
    from vlhmm.reports import as_json

    # Where the stream has no Unicode, JSON's own escapes; those of Python would not be JSON.
    unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
    print(json.dumps(as_json(answer, **question), ensure_ascii=not unicode))


class _OneLineRows(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:
        """Words that do not fit are cut short in their line, and do not go on in the next unless the cell says so."""
        super().add_row(*(_one_line(cell) for cell in cells), **options)


def _one_line(cell: Any) -> Any:
    if isinstance(cell, str):
        return Text(cell, no_wrap=True)
    if isinstance(cell, Text) and cell.no_wrap is None:
        cell.no_wrap = True
    return cell


def table(*columns: str, right: Sequence[str] = (), whole: Sequence[str] = ()) -> Table:
    """A table without lines; the columns named in `right` are numbers.

    Where the terminal is narrow, words are cut short, the longest first, but never numbers nor the columns in `whole`.
    """
    shown = _OneLineRows(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        number = column in right
        shown.add_column(
            _one_line(column),
            justify="right" if number else "left",
            overflow="ellipsis",
            # rich takes from columns that may wrap before it takes from any other.
            no_wrap=number or column in whole,
            min_width=max(NUMBER_WIDTH, len(column)) if number else None,
        )
    return shown


def print_table(shown: Table) -> None:
    """Without a terminal no line ends in spaces."""
    target = console()
    if target.is_terminal:
        target.print(shown)
        return
    with target.capture() as captured:
        target.print(shown)
    for row in captured.get().splitlines():
        print(row.rstrip())


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values in two columns; a long value goes on under itself."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in rows:
        shown.add_row(name, value)
    print_table(shown)


def bar(part: float, style: str = "cyan", width: int = BAR_WIDTH) -> Text:
    """`part` of a full bar, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    if "utf" not in (console().encoding or "").lower():
        return Text("#" * round(eighths / 8), style)
    return Text("█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8], style)


def short(count: int | float) -> str:
    """12,345,678 as 12.3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / limit * (10 if unit == 'k' else 1):.1f}{unit}"
    return f"{count:,.0f}"


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def command_line() -> str:
    """This command as it was typed."""
    return shlex.join(["vlhmm", *sys.argv[1:]])


def program() -> str:
    """What to type to run this program again from here."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{_from_here(Path(sys.executable))} -m vlhmm"
    found = shutil.which("vlhmm")
    if script.name != "vlhmm" or (found is not None and Path(found).absolute() == script.absolute()):
        return "vlhmm"
    return _from_here(script)


def _from_here(path: Path) -> str:
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


LINE_SECONDS = 30.0
"""Between two lines of progress in a file."""


class _Left(ProgressColumn):
    """The time that is left, in few characters."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
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
        yield ProgressBar(progress, progress.add_task(description, total=total, note=""))


class ProgressBar:
    """One task of a rich progress display."""

    def __init__(self, progress: Bars, task: Any) -> None:
        self._progress, self._task = progress, task
        self._last_line = time.monotonic()

    def update(self, done: int, total: int | None = None, note: str = "", description: str | None = None) -> None:
        changes: dict[str, Any] = {"completed": done, "note": note}
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
        from vlhmm.progress import Note, Progress

        match event:
            case Note(text):
                self._shown.line(text)
            case Progress(what, done, total, unit, amount, note):
                if what != self._part:
                    self._part, self._begun = what, time.monotonic()
                if unit:
                    count = done if amount is None else amount
                    rate = f"{short(count / max(time.monotonic() - self._begun, 1e-9))} {unit}/s"
                    note = f"{note}  {rate}" if note else rate
                self._shown.update(done, total, note, what)
