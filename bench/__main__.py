"""`python -m bench --device cuda|cpu --json F`: ours, the peers that are installed and the floor, in one table."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bench import original
from bench.epoch import run_epoch
from bench.floor import Rates, dense_needs, measure_rates, step_needs
from bench.measure import Result, compare
from bench.ours import Ours, step_inputs, timed_step
from bench.peers import PEERS, Engine, installed
from bench.report import Epoch, Row, about, table
from bench.sizes import default_works, dense_sizes, step_sizes
from bench.workloads import TITLES, DenseSizes, Step, StepSizes, Timed, Truth, Work, dense_inputs, error, tolerance


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda" if torch.cuda.is_available() else "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(TITLES)}, with commas.")] = None,
    states: Annotated[str | None, typer.Option(help="Numbers of states for W1, W2, W4, W5, with commas.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 20,
    peers: Annotated[bool, typer.Option(help="Measure the peers that are installed.")] = True,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: to see that everything runs.")] = False,
) -> None:
    """Measures this package against its peers and against what the device allows. A wrong answer gets no time."""
    begun = time.perf_counter()
    where = _device(device)
    works = _works(only, where, quick)
    numbers = _numbers(states)
    console = Console()
    rates = measure_rates(where, quick)
    rows: list[Row] = []
    epochs: list[Epoch] = []
    for work in works:
        console.print(f"{work} {TITLES[work]} ...", style="dim")
        match work:
            case "W1" | "W2" | "W4" | "W5":
                rows += [
                    dense_row(work, sizes, where, rates, repeat, peers)
                    for sizes in dense_sizes(work, where, quick, numbers)
                ]
            case "W3" | "W3b":
                rows.append(step_row(work, step_sizes(work, quick), where, rates, repeat, peers))
            case "PTB" | "PTBb":
                epochs.append(run_epoch(work, where, steps=40 if quick else None))
        if where.type == "cuda":
            torch.cuda.empty_cache()
    # Wide enough for reasons also where the output is a file.
    (console if console.is_terminal else Console(width=150)).print(table(rows, epochs, rates))
    if json_file is not None:
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        found = about(where, command, time.perf_counter() - begun, rates)
        found |= {"rows": [row.to_json() for row in rows], "epochs": [epoch.to_json() for epoch in epochs]}
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def dense_row(work: Work, sizes: DenseSizes, device: torch.device, rates: Rates, repeat: int, with_peers: bool) -> Row:
    inputs = dense_inputs(sizes, device)
    ours = Ours()
    peers = [peer for peer in PEERS if with_peers and device.type in peer.devices]
    engines: list[Engine] = [ours, *(peer for peer in peers if installed(peer))]
    allowed = tolerance(work, device)
    results = compare(
        {engine.name: partial(engine.timed, work, inputs) for engine in engines},
        partial(error, work, Truth(inputs)),
        allowed,
        device,
        repeat,
    )
    missing = [Result(peer.name, message="not installed") for peer in peers if not installed(peer)]
    floor = 1e3 * dense_needs(work, sizes, rates).seconds(rates)
    return Row(work, asdict(sizes), allowed, floor, results[0], results[1:] + missing)


def step_row(work: Step, sizes: StepSizes, device: torch.device, rates: Rates, repeat: int, with_peers: bool) -> Row:
    inputs = step_inputs(sizes, device)
    engines: dict[str, Callable[[], Timed]] = {Ours.name: partial(timed_step, inputs)}
    if with_peers:
        engines[original.NAME] = partial(original.timed_eager_step, inputs)
    allowed = tolerance(work, device)
    results = compare(engines, partial(original.step_error, inputs), allowed, device, repeat)
    floor = 1e3 * step_needs(sizes, rates).seconds(rates)
    return Row(work, {**asdict(sizes), "states": sizes.states}, allowed, floor, results[0], results[1:])


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device is {name!r}; known are cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no CUDA device is there: use --device cpu")
    return torch.device(name)


def _works(only: str | None, device: torch.device, quick: bool) -> tuple[str, ...]:
    if only is None:
        return default_works(device, quick)
    works = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in works if name not in TITLES]
    if unknown:
        raise typer.BadParameter(f"unknown work {unknown[0]!r}; known are {', '.join(TITLES)}")
    return works


def _numbers(states: str | None) -> tuple[int, ...] | None:
    if states is None:
        return None
    try:
        numbers = tuple(int(number) for number in states.split(","))
    except ValueError:
        raise typer.BadParameter(f"states is {states!r}, but numbers with commas are needed: 512,1024") from None
    if min(numbers) < 1:
        raise typer.BadParameter(f"states has {min(numbers)}, but at least 1 state is needed")
    return numbers


if __name__ == "__main__":
    typer.run(main)
