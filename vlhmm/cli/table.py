"""`vlhmm table`: the earlier name of `python -m experiments`, kept for one release."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlhmm.cli.show import message


def register(app: typer.Typer) -> None:
    app.command(
        "table",
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )(forward)


def forward(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> int:
    """Deprecated: `python -m experiments` in a checkout runs the tables of the papers."""
    message("`vlhmm table` is deprecated and goes with the next release: use `python -m experiments` in a checkout")
    # A checkout is importable where it is the current folder, as it is for `python -m experiments`.
    if Path("experiments/cli.py").exists():
        sys.path.insert(0, str(Path.cwd()))
    try:
        from experiments.cli import commands
    except ImportError:
        raise ValueError(
            "the tables of the papers are not part of the installed package: run `python -m experiments` in a checkout of the repository"
        ) from None
    status = commands()(arguments or ["--help"], prog_name="vlhmm table", standalone_mode=False)
    return status if isinstance(status, int) else 0
