"""A small table over a small text, and ways to run it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tiny import tiny_corpus

import vlhmm
from experiments.results import Result, identity_of
from experiments.rows import RowEvent, RowRun, run_row
from experiments.table_file import TableFile, read_table

TEXT = {"corpus": "0123"}
"""Checksums of no text."""
SMALL = (
    "{ num_blocks = 5, states_per_block = 4, dim = 8, epochs = 2, batch_size = 4, window = 16, checks_per_epoch = 2, "
    "learning_rate = 0.02 }"
)

TABLE = f"""
title = "A small table"
source = "nobody"
corpus = "tiny"
columns = ["parameters", "train", "valid", "test", "seconds_per_epoch"]
preset = "chiu2020-ptb"
changes = {SMALL}

[[rows]]
name = "HMM"
paper = {{ valid = 4.0, parameters = 1000 }}
seconds = 2
x = 1
series = "a"

[[rows]]
name = "no dropout"
changes = {{ state_dropout = 0.0 }}
x = 2
series = "a"

[[rows]]
name = "trigrams"
baseline = "kneser-ney"
changes = {{ order = 3, fallback = true }}
seconds = 1
test = true
paper = {{ test = 3.0 }}

[[claims]]
text = "dropout helps"
less = ["HMM.valid", "no dropout.valid"]

[figure]
x = "dropout"
y = "valid"
"""


def write_table(folder: Path, text: str = TABLE, name: str = "small.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def small_table(folder: Path, text: str = TABLE, name: str = "small.toml") -> TableFile:
    return read_table(write_table(folder, text, name))


def row_run(table: TableFile, name: str, corpus: vlhmm.Corpus, seed: int = 0) -> RowRun:
    folder = table.path.parent
    text = {"corpus": corpus.hash}
    return RowRun(table, table.row(name), seed, text, (folder / "results",), folder / "runs", f"vlhmm table run {name}")


def events_of(run: RowRun, corpus: vlhmm.Corpus, **options: object) -> Sequence[RowEvent]:
    return list(run_row(run, corpus, torch.device("cpu"), **options))  # type: ignore[arg-type]


def small_corpus() -> vlhmm.Corpus:
    return tiny_corpus(120)


def made(table: TableFile, row: str = "HMM", seed: int = 0, valid: float = 5.0, **changes: object) -> Result:
    """A result that nobody measured."""
    identity = identity_of(table.row(row), TEXT, seed)
    result = Result(
        table=table.name,
        row=row,
        kind=identity.kind,
        settings=identity.settings,
        data=identity.data,
        seed=seed,
        status="finished",
        measured={"valid": valid},
        protocols={"valid": "one exact stream"},
        curve=[],
        seconds=1.0,
        device="cpu",
        command="vlhmm table run",
        commit=None,
        versions={},
        corpus_hash="0123",
    )
    return replace(result, **changes)  # type: ignore[arg-type]
