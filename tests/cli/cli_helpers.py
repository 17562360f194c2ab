"""A small text, small settings, and commands in a process of their own."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import vlhmm

SMALL = [
    *("--preset", "demo", "--device", "cpu", "--set", "num_blocks=6", "--set", "states_per_block=4"),
    *("--set", "dim=8", "--set", "batch_size=4", "--set", "window=16", "--set", "epochs=2"),
    *("--tokenizer", "words"),
]
"""A model that trains in a second."""


def write_text(path: Path, num_lines: int = 240) -> None:
    """English-like lines: article, noun, verb, and an end."""
    draw = random.Random(0)
    nouns = ["file", "name", "list", "string", "module", "value"]
    verbs = ["reads", "returns", "opens", "holds", "changes"]
    ends = ["at once .", "of the file .", "for a while .", "."]
    lines = [
        f"{draw.choice(['the', 'a'])} {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)} {draw.choice(ends)}"
        for _ in range(num_lines)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON value and nothing else."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error."""
        assert self.out == ""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0]


Run = Callable[..., Ran]


def start_process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own, one thread, nothing but pipes around it."""
    # Found from any working directory, installed or not.
    package = Path(vlhmm.__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)}
    environment.pop("VLHMM_DEBUG", None)
    return subprocess.Popen(
        [sys.executable, "-m", "vlhmm", *(str(argument) for argument in arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def same_weights(first: Path, second: Path) -> bool:
    """Whether two run folders hold bit-identical models. The files may differ: safetensors writes metadata in any order."""
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
