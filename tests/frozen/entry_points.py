"""Every name that the frozen tests take from inside the package, in one place: when modules move, this file alone changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main
from torch import Tensor

from vlhmm.cli import app
from vlhmm.experiments.claims import Verdict
from vlhmm.experiments.results import read_result, results_folders
from vlhmm.experiments.show import show_table
from vlhmm.experiments.table_file import read_table
from vlhmm.experiments.texts import checksums
from vlhmm.tables import (
    BlockFactoredTransition,
    SoftmaxTransition,
    Support,
    Tables,
    TableTransition,
    blocked_support,
    cloned_support,
    dense_support,
)

__all__ = ["Support", "blocked_support", "cloned_support", "dense_support", "tables_of"]


def tables_of(
    support: Support, transition: str, numbers: dict[str, Tensor], reset_token: int | None, *, precision: str = "bf16"
) -> Tables:
    """The record of an HMM with these numbers, which are normalised already."""
    made: TableTransition | SoftmaxTransition | BlockFactoredTransition
    if transition == "table":
        made = TableTransition(numbers["log_transition"])
    elif transition == "softmax":
        made = SoftmaxTransition(numbers["out"], numbers["into"], numbers["log_normalizer"])
    else:
        made = BlockFactoredTransition(numbers["log_block"], numbers["out"], numbers["into"])
    return Tables(support, numbers["log_start"], made, numbers["log_emission"], reset_token, precision)  # type: ignore[arg-type]


def root_command() -> Any:
    """The tree of commands that typer has made."""
    return typer.main.get_command(app)


def result_identity(path: Path) -> str:
    """The hash of what decided a result, made anew from its settings; a result whose own hash is another is refused."""
    return read_result(path).identity.hash


def claim_verdicts(folder: Path) -> list[tuple[Path, Verdict]]:
    """Of every claim of every table under `folder`."""
    judged = []
    for file in sorted(folder.rglob("*.toml")):
        table = read_table(file)
        shown = show_table(table, checksums(table.corpus, None), results_folders(file))
        judged += [(file, verdict) for verdict in shown.verdicts]
    return judged
