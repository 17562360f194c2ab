"""What every command prints with `--json`, on the small models and texts of the first edition."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import entry_points, records
from .folders import COMMAND_OPTIONS, COMMAND_RUN, DRAWN, TINY_LLAMA
from .training import FIRST_EDITION

NAME = "commands"
TEXT = "the file reads the list ."
NEURAL, SUBWORD = "models/neural", "models/subword"
SMALL = [
    *("--device", "cpu", "--set", "dim=8", "--set", "batch_size=4", "--set", "epochs=1", "--set", "checks_per_epoch=1"),
]
TABLE = """
title = "A small table"
source = "nobody"
corpus = "corpus"
columns = ["parameters", "valid", "test"]
preset = "chiu2020-ptb"
changes = { num_blocks = 4, states_per_block = 4, dim = 8, epochs = 1, batch_size = 4, window = 24, learning_rate = 0.02 }

[[rows]]
name = "HMM"
paper = { valid = 4.0 }
seconds = 2

[[rows]]
name = "trigrams"
baseline = "kneser-ney"
changes = { order = 3, fallback = true }
seconds = 1
test = true

[[rows]]
name = "LSTM"
baseline = "lstm"
changes = { dim = 6, epochs = 1, batch_size = 4, window = 24 }

[[claims]]
text = "the HMM is better than trigrams"
less = ["HMM.valid", "trigrams.valid"]
"""
SESSIONS: dict[str, list[list[str]]] = {
    "queries": [
        ["score", NEURAL, TEXT, "--eos", "--json"],
        ["next", NEURAL, "the", "--top", "3", "--allow-unk", "--json"],
        ["posterior", NEURAL, "the file reads", "--top", "2", "--json"],
        ["viterbi", NEURAL, "the file reads", "--k", "2", "--json"],
        [
            "infill",
            NEURAL,
            "the ___ reads ___{1,2} .",
            "--num",
            "2",
            "--top",
            "2",
            "--seed",
            "1",
            "--allow-unk",
            "--json",
        ],
        [
            "generate",
            NEURAL,
            "--prompt",
            "the",
            "--num",
            "2",
            "--max-tokens",
            "8",
            "--seed",
            "1",
            "--allow-unk",
            "--json",
        ],
        [
            "generate",
            NEURAL,
            "--must-contain",
            "list",
            "--words",
            "3-6",
            "--num",
            "2",
            "--seed",
            "1",
            "--allow-unk",
            "--json",
        ],
        ["generate", NEURAL, "--max-tokens", "5", "--best", "--allow-unk", "--json"],
        ["info", NEURAL, "--json"],
    ],
    "texts": [
        ["eval", NEURAL, "corpus", "--split", "valid", "--json"],
        ["eval", SUBWORD, "text/test.txt", "--streams", "2", "--json"],
        ["explore", NEURAL, "--corpus", "corpus", "--split", "valid", "--tokens", "60", "--out", "page.html", "--json"],
        ["inspect", NEURAL, "corpus", "--tokens", "60", "--memory", "2", "--top", "1", "--json"],
        [
            "prepare",
            "text/train.txt",
            "text/valid.txt",
            "text/test.txt",
            "--tokenizer",
            "whitespace",
            "--out",
            "again",
            "--json",
        ],
        ["cluster", "corpus", "--blocks", "4", "--out", "made.tsv", "--json"],
    ],
    "training": [
        ["train", "corpus", "--out", "new", *COMMAND_OPTIONS, "--dry-run", "--json"],
        ["train", "--out", f"stopped/{COMMAND_RUN}", "--resume", "--device", "cpu", "--json"],
        ["info", f"stopped/{COMMAND_RUN}", "--json"],
        [
            *("train", "corpus", "--out", "em", "--method", "em", "--device", "cpu", "--set", "states_per_block=4"),
            *("--set", "iterations=2", "--set", "batch_size=4", "--set", "window=24", "--json"),
        ],
        [
            *("demo", "--data", "corpus", "--out", "demo", *SMALL, "--set", "num_blocks=3"),
            *("--set", "states_per_block=3", "--set", "window=24", "--set", "transition=softmax"),
            *("--set", "initialisation=code", "--json"),
        ],
    ],
    "distillation": [
        [
            *("distill", TINY_LLAMA, "--samples", "samples", "--out", "written", "--states", "4", *SMALL, "--json"),
            *("--tokens", str(DRAWN["tokens"]), "--max-tokens", str(DRAWN["max_tokens"])),
            *("--batch-size", str(DRAWN["batch_size"])),
        ],
        [
            *("distill", "decoder", "--text", "corpus", "--out", "read", "--states", "4", *SMALL),
            *("--set", "window=24", "--cluster-tokens", "240", "--joint-tokens", "400", "--json"),
        ],
    ],
    "runs": [
        ["export", NEURAL, "--out", "shipped", "--json"],
        ["compare", NEURAL, NEURAL, "--split", "valid", "--samples", "100", "--json"],
    ],
    "backends": [["backends", "--device", "cpu", "--json"]],
    "tables": [
        ["table", "run", "tables/small.toml", "--runs", "kept", "--device", "cpu", "--json"],
        ["table", "show", "tables/small.toml", "--json"],
        ["table", "list", "tables", "--json"],
        ["table", "claims", "tables", "--json"],
    ],
}
"""Commands that are run one after the other, in a folder that holds the first edition's."""
LEFT_OUT = frozenset(
    {
        # Times.
        *("seconds", "train_seconds", "sampling_seconds", "seconds_per_epoch"),
        *("training_ms", "regenerating_ms", "cached_ms"),
        # Machines and versions.
        *("device", "available_bytes", "num_bytes", "run_bytes", "vlhmm", "python", "torch", "versions", "commit"),
        # Paths, alone or in a command.
        *("command", "folder", "file", "learning_curve"),
    }
)
"""Their keys count, their values do not."""


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """The working directory is a new copy of the first edition's folders."""
    shutil.copytree(FIRST_EDITION, folder)
    (folder / "tables").mkdir()
    (folder / "tables" / "small.toml").write_text(TABLE, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def printed(session: str, folder: Path) -> list[dict[str, Any]]:
    """For each command of a session what it printed, a JSON value a line."""
    found = []
    with in_folder(folder):
        for command in SESSIONS[session]:
            lines = entry_points.run_command(*command).splitlines()
            found.append({"command": " ".join(command), "printed": [comparable(json.loads(line)) for line in lines]})
    return found


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "..." if key in LEFT_OUT else comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return value


def record() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        found = {session: printed(session, Path(temporary) / session) for session in SESSIONS}
    records.write_json(NAME, found)
