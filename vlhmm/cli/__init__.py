"""The command line: typer commands over the library, and the one place where errors become messages."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from vlhmm._version import __version__
from vlhmm.cli import (
    corpora,
    demo,
    distill,
    evaluation,
    generate,
    infill,
    info,
    inspect,
    queries,
    show,
    table,
    training,
)
from vlhmm.cli.show import message


class _PipeClosedError(Exception):
    """Whoever read our output has heard enough."""


class _InterruptedError(Exception):
    """Ctrl-C."""


class _Commands(TyperGroup):
    """Hands on the two exceptions that typer would otherwise treat in its own way."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError as error:
            raise _PipeClosedError from error
        except KeyboardInterrupt as error:
            raise _InterruptedError from error


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with:\n  vlhmm demo\nHelp on a command:\n  vlhmm train --help",
)
for module in (corpora, training, distill, evaluation, queries, infill, generate, info, inspect, demo, table):
    module.register(app)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"vlhmm {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Very large hidden Markov language models, with exact inference."""


def main() -> int:
    """Runs the command that was typed; the exit status: 0, 2 for an error, 1 for training that diverged, 130 after Ctrl-C.

    `VLHMM_DEBUG=1` shows the traceback of an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without Unicode gets escapes, not a crash.
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="vlhmm", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except _InterruptedError:
        message("interrupted")
        return 130
    except _PipeClosedError:
        # What is left in the buffer must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("VLHMM_DEBUG") == "1":
            raise
        return _report(error)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of a library as one line."""
    show.message("warning: " + " ".join(str(message).split()))


def _report(error: Exception) -> int:
    """One line for what the user can mend; anything else is a defect of ours and is raised on."""
    if hasattr(error, "format_message"):
        # typer's own: an unknown option, a missing argument.
        message("error: " + " ".join(error.format_message().split()))
        return 2
    from vlhmm.train import DivergedError

    if isinstance(error, DivergedError):
        message(f"error: {error}")
        return 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        message(f"error: {where}{error.strerror or error}")
        return 2
    if isinstance(error, ValueError):
        message("error: " + " ".join(str(error).split()))
        return 2
    raise error
