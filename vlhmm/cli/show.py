"""What commands print: results to stdout, messages and progress to stderr; plain text where no terminal is."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from vlhmm.progress import duration
from vlhmm.progress_bar import console, progress_bar, short, watch

__all__ = [
    "bar",
    "command_line",
    "console",
    "duration",
    "facts",
    "line",
    "message",
    "print_json",
    "print_table",
    "program",
    "progress_bar",
    "short",
    "size",
    "table",
    "watch",
]

BAR_WIDTH = 24
NUMBER_WIDTH = 6


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


def size(num_bytes: int) -> str:
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes >= 10 * 2**20 else f"{num_bytes / 2**20:.1f} MiB"


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
