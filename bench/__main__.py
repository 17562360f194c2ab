"""`python -m bench --device cuda|cpu --json F`: ours, the peers that are installed and the floor, in one table.

`python -m bench scaling`: cost against every size, and the most states that fit; `python -m bench plots`: pictures of that.
`python -m bench grid`: small HMMs on a CPU, beside every peer. `python -m bench cpu`: all that is measured on a CPU, the grid included. `python -m bench beside`: several trainings at once. `python -m bench constraints`: how long constraints take to compile.
`python -m bench profile`: where the time of a call goes, kernel by kernel.
`python -m bench distributed`: steps over several processes, and a model of larger clusters.
`python -m bench tilings`: which tiling of the kernels of a block-factored step is the fastest on this GPU.
`python -m bench serve`: requests per second, latencies, overload and memory of `vlhmm serve`.
`python -m bench explore`: size, first paint and interactions of the explorer page of a large model.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from bench.command_line import (
    DEFAULT_DEVICE,
    DeviceName,
    JsonFile,
    PeersFrom,
    Quick,
    device_named,
    numbers_in,
    read_peers,
    wide,
    works_named,
    write_results,
)
from bench.cpu_commands import constraints, cpu, grid, plots
from bench.epoch import run_epoch
from bench.errors import ErrorRow, error_rows
from bench.first_step import FirstStep, first_steps
from bench.floor import measure_rates
from bench.memory import Peak, peaks
from bench.ours import QUERY_PRECISION
from bench.report import Epoch, Row, table
from bench.report_checks import error_table, first_step_table, peak_table
from bench.rows import dense_row, step_row
from bench.serving_commands import explore, serve
from bench.sizes import dense_sizes, step_sizes
from bench.training_commands import beside, distributed, hang, profile, scaling, tilings
from bench.workloads import TITLES
from vlhmm.precision import Precision

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
for command in (scaling, beside, distributed, hang, constraints, serve, explore, grid, tilings, cpu, profile, plots):
    app.command()(command)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(TITLES)}, with commas.")] = None,
    states: Annotated[str | None, typer.Option(help="Numbers of states for W1, W2, W4, W5, with commas.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 20,
    peers: Annotated[bool, typer.Option(help="Measure the peers that are installed.")] = True,
    precision: Annotated[Precision, typer.Option(help="What our W1, W2 and W5 read on a GPU.")] = QUERY_PRECISION,
    peers_from: PeersFrom = None,
    quick: Quick = False,
) -> None:
    """Measures this package against its peers and against what the device allows. A wrong answer gets no time."""
    if context.invoked_subcommand is not None:
        return
    begun = time.perf_counter()
    where = device_named(device)
    read_peers(peers_from)
    works = works_named(only, where, quick)
    numbers = numbers_in(states)
    console = Console()
    rates = measure_rates(where, quick)
    rows: list[Row] = []
    epochs: list[Epoch] = []
    errors: list[ErrorRow] = []
    held: list[Peak] = []
    firsts: list[FirstStep] = []
    for work in works:
        console.print(f"{work} {TITLES[work]} ...", style="dim")
        match work:
            case "W1" | "W2" | "W4" | "W5":
                rows += [
                    dense_row(work, sizes, where, rates, repeat, peers, precision)
                    for sizes in dense_sizes(work, where, quick, numbers)
                ]
            case "W3" | "W3b" | "W3c" | "W3d" | "W3e":
                rows.append(step_row(work, step_sizes(work, quick), where, rates, repeat, peers))
            case "PTB" | "PTBb":
                epochs.append(run_epoch(work, where, steps=40 if quick else None))
            case "errors":
                errors += error_rows(where, quick)
            case "memory":
                held += peaks(where, quick)
            case "first":
                firsts += [*first_steps("W3", where, quick), *first_steps("W3b", where, quick)]
        found: dict[str, list[dict[str, Any]]] = {
            "rows": [row.to_json() for row in rows],
            "epochs": [epoch.to_json() for epoch in epochs],
            "errors": [asdict(row) for row in errors],
            "memory": [asdict(peak) for peak in held],
            "first_steps": [asdict(first) for first in firsts],
        }
        # After each work: what is stopped half way keeps what it has measured.
        write_results(json_file, where, begun, rates, found)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    shown = wide(console)
    for part in (table(rows, epochs, rates), error_table(errors), peak_table(held), first_step_table(firsts)):
        if part.row_count:
            shown.print(part)


if __name__ == "__main__":
    app()
