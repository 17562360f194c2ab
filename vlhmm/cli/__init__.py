"""The command line: typer commands over the library, and the one place where errors become messages.

A module of commands imports typer, rich and its neighbours alone; what imports torch is imported inside the command that needs
it. So `--help` of any command takes a fraction of a second, which a test checks.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from vlhmm._version import __version__
from vlhmm.cli import (
    corpora,
    demo,
    distill,
    evaluation,
    explore,
    generate,
    infill,
    info,
    inspect,
    queries,
    runs,
    serve,
    show,
    table,
    training,
)
from vlhmm.cli.ranks import joined_ranks, lost_rank, require_shared, said_nothing
from vlhmm.cli.show import message
from vlhmm.interrupts import INTERRUPTED, announced_interrupts

OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF)
"""What may happen to a stream that is written to."""


class _PipeClosedError(Exception):
    """Stdout was closed by its reader."""


class _InterruptedError(Exception):
    """Ctrl-C."""


class Commands(TyperGroup):
    """Hands on the two exceptions that typer would otherwise treat in its own way."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        require_shared(name)
        return name, command, rest

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
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with:\n  vlhmm demo\nHelp on a command:\n  vlhmm train --help",
)
for module in (
    corpora,
    training,
    distill,
    evaluation,
    runs,
    queries,
    infill,
    generate,
    info,
    inspect,
    explore,
    demo,
    serve,
    table,
):
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


def main(commands: typer.Typer = app, prog_name: str = "vlhmm") -> int:
    """Runs the command that was typed; the exit status: 0, 2 for an error, 1 for training that diverged, 130 after Ctrl-C.

    `VLHMM_DEBUG=1` shows the traceback of an error.
    """
    _open_streams()
    warnings.showwarning = _show_warning
    # At exit Python would look for garbage among all objects of torch: a fifth of the time of a short command.
    atexit.register(gc.freeze)
    try:
        with announced_interrupts(), joined_ranks():
            status = commands(sys.argv[1:] or ["--help"], prog_name=prog_name, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except _InterruptedError:
        message("interrupted")
        return INTERRUPTED
    except _PipeClosedError:
        _drop_closed_pipes()
        return 0
    except SystemExit as ended:
        # rich exits so when the reader of --help has closed stdout; no command of this package does.
        _drop_closed_pipes()
        return 0 if ended.code == 1 else int(ended.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("VLHMM_DEBUG") == "1":
            raise
        return _report(error)


def _open_streams() -> None:
    """Streams that were closed lead nowhere, so that no file takes their place; those without Unicode get escapes."""
    # In the order of their numbers: the lowest that is free is taken.
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        nowhere = os.open(os.devnull, os.O_RDONLY if name == "stdin" else os.O_WRONLY)
        setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if "stdout" in closed:
        message("warning: stdout is closed, so nothing that is printed there is seen")


def _drop_closed_pipes() -> None:
    """What is left in the buffer of a closed pipe must not be written at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def _report(error: BaseException) -> int:
    """One line for what the user can correct; anything else is a bug and is raised again."""
    if said_nothing(error):
        return 2
    line = _expected(error)
    if line is None:
        raise error
    with suppress(OSError):
        message(f"error: {line}")
    _drop_closed_pipes()
    return 1 if _diverged(error) else INTERRUPTED if isinstance(error, KeyboardInterrupt) else 2


def _diverged(error: BaseException) -> bool:
    # Nothing has diverged where nothing was trained; the module takes seconds to import.
    trainer = sys.modules.get("vlhmm.training.trainer")
    return trainer is not None and isinstance(error, trainer.DivergedError)


def _expected(error: BaseException) -> str | None:
    """What to say of an error that can happen without a defect; None for any other."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if hasattr(error, "format_message"):
        # typer's own: an unknown option, a missing argument.
        return " ".join(error.format_message().split())
    if isinstance(error, OSError):
        # All that is written to files names them; what names nothing is the output.
        where = "stdout" if error.filename is None and error.errno in OUTPUT_ERRORS else error.filename
        return f"{'' if where is None else f'{where}: '}{error.strerror or error}"
    if isinstance(error, ValueError):
        return " ".join(str(error).split())
    if _diverged(error) or lost_rank(error):
        return str(error)
    torch = sys.modules.get("torch")
    no_memory = isinstance(error, MemoryError) or (
        # What torch raises where a GPU has no more, and where a CPU has.
        torch is not None
        and (
            isinstance(error, torch.OutOfMemoryError)
            or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
        )
    )
    return "out of memory: ask for less at a time, or use a smaller model or batch" if no_memory else None
