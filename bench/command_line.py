"""What the commands of `python -m bench` have in common: their options, and how results are shown and written."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from bench.floor import Rates
from bench.peers import read_from
from bench.report import about
from bench.sizes import default_works
from bench.workloads import TITLES

DeviceName = Annotated[str, typer.Option("--device", help="cuda or cpu.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results there.")]
PeersFrom = Annotated[
    Path | None, typer.Option("--peers-from", help="A folder with unpacked peers, for where nothing can be installed.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes: to see that everything runs.")]
DEFAULT_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def device_named(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device is {name!r}; known are cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no CUDA device is there: use --device cpu")
    return torch.device(name)


def read_peers(folder: Path | None) -> None:
    if folder is not None:
        try:
            read_from(folder)
        except ValueError as reason:
            raise typer.BadParameter(str(reason)) from None


def works_named(only: str | None, device: torch.device, quick: bool) -> tuple[str, ...]:
    if only is None:
        return default_works(device, quick)
    works = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in works if name not in TITLES]
    if unknown:
        raise typer.BadParameter(f"unknown work {unknown[0]!r}; known are {', '.join(TITLES)}")
    return works


def numbers_in(states: str | None) -> tuple[int, ...] | None:
    if states is None:
        return None
    try:
        numbers = tuple(int(number) for number in states.split(","))
    except ValueError:
        raise typer.BadParameter(f"states is {states!r}, but numbers with commas are needed: 512,1024") from None
    if min(numbers) < 1:
        raise typer.BadParameter(f"states has {min(numbers)}, but at least 1 state is needed")
    return numbers


def wide(console: Console) -> Console:
    """Wide enough for reasons also where the output is a file."""
    return console if console.is_terminal else Console(width=150)


def kept_parts(json_file: Path | None, *names: str) -> dict[str, list[dict[str, Any]]]:
    """These parts of a result file that exists, each with the command and the commit that made it."""
    if json_file is None or not json_file.exists():
        return {}
    before = json.loads(json_file.read_text(encoding="utf-8"))
    made_by = {name: before[name] for name in ("command", "commit") if name in before}
    return {name: [{**made_by, **one} for one in before[name]] for name in names if name in before}


def write_results(
    json_file: Path | None, device: torch.device, begun: float, rates: Rates, parts: dict[str, list[dict[str, Any]]]
) -> None:
    if json_file is not None:
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        found = about(device, command, time.perf_counter() - begun, rates) | parts
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
