"""Commands that measure on a CPU, and pictures of what was measured."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from bench.command_line import JsonFile, PeersFrom, Quick, read_peers, wide, write_results
from bench.constraints import compiled
from bench.cpu import extras
from bench.floor import measure_rates
from bench.grid import cells, draw_grid
from bench.plots import draw_scaling
from bench.report import Row, table
from bench.report_checks import compiled_table, extra_table, grid_table
from bench.rows import dense_row
from bench.sizes import SMALL_AND_LARGE, dense_sizes
from bench.workloads import TITLES


def constraints(
    json_file: JsonFile = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or SentencePiece model; without it, subwords of random words.")
    ] = None,
    quick: Quick = False,
) -> None:
    """CPU time until a constraint is compiled or refused."""
    begun = time.perf_counter()
    where = torch.device("cpu")
    found = list(compiled(quick, tokenizer))
    wide(Console()).print(compiled_table(found))
    write_results(json_file, where, begun, measure_rates(where, quick), {"constraints": [asdict(one) for one in found]})


def grid(
    json_file: JsonFile = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 5,
    peers_from: PeersFrom = None,
    quick: Quick = False,
) -> None:
    """Queries of small HMMs on a CPU, beside the peers that are installed, over a grid of sizes."""
    begun = time.perf_counter()
    where = torch.device("cpu")
    read_peers(peers_from)
    rates = measure_rates(where, quick)
    found = []
    for cell in cells(repeat, quick):
        found.append(cell)
        # After each: what is stopped half way keeps what it has measured.
        write_results(json_file, where, begun, rates, {"grid": [asdict(one) for one in found]})
    wide(Console()).print(grid_table(found))


def cpu(
    json_file: JsonFile = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 9,
    seconds: Annotated[float, typer.Option(help="For each engine in each row.")] = 1.5,
    peers_from: PeersFrom = None,
    quick: Quick = False,
) -> None:
    """All that is measured on a CPU: queries of 8 to 1,024 states, other work, and the grid; eight minutes on two idle cores."""
    begun, where, console = time.perf_counter(), torch.device("cpu"), Console()
    read_peers(peers_from)
    rates = measure_rates(where, quick)
    parts: dict[str, list[dict[str, Any]]] = {"rows": [], "other": [], "grid": []}

    def note(part: str, one: dict[str, Any]) -> None:
        parts[part].append(one)
        write_results(json_file, where, begun, rates, parts)

    rows: list[Row] = []
    for work in ("W1", "W2", "W4", "W5"):
        console.print(f"{work} {TITLES[work]} ...", style="dim")
        for sizes in dense_sizes(work, where, quick, None if quick else SMALL_AND_LARGE):
            rows.append(dense_row(work, sizes, where, rates, repeat, True, max_seconds=seconds))
            note("rows", rows[-1].to_json())
    other = []
    for one in extras(rates, quick):
        console.print(f"{one.name} ...", style="dim")
        other.append(one)
        note("other", asdict(one))
    found = []
    console.print("the grid ...", style="dim")
    for cell in cells(min(repeat, 5), quick):
        found.append(cell)
        note("grid", asdict(cell))
    shown = wide(console)
    for part in (table(rows, [], rates), extra_table(other), grid_table(found)):
        shown.print(part)


def plots(
    json_file: Annotated[Path, typer.Argument(metavar="FILE", help="What `scaling --json` or `grid --json` wrote.")],
    folder: Annotated[Path, typer.Option("--to", help="Where the pictures go.")] = Path("docs/images"),
) -> None:
    """Pictures of the cost against every size, or of the grid."""
    try:
        found = json.loads(json_file.read_text(encoding="utf-8"))
        drawn = draw_grid(found, folder) if "grid" in found else draw_scaling(found, folder)
    except (OSError, ValueError) as reason:
        raise typer.BadParameter(str(reason)) from None
    for path in drawn:
        print(path)
