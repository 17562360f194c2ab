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
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from bench import original
from bench.beside import side_by_side
from bench.constraints import compiled
from bench.cpu import extras
from bench.distributed import on_cpu, on_gpu, tables
from bench.epoch import run_epoch
from bench.errors import ErrorRow, error_rows
from bench.explore import explored
from bench.first_step import FirstStep, first_steps
from bench.floor import Rates, dense_needs, measure_rates, step_needs
from bench.grid import cells, draw_grid
from bench.hang import Phase, cooperative_nodes
from bench.hang import as_json as hang_json
from bench.hang import run as provoke_hang
from bench.largest import largest
from bench.measure import MAX_SECONDS, Result, compare
from bench.memory import Peak, peaks
from bench.ours import QUERY_PRECISION, Ours, step_inputs, timed_step
from bench.peers import PEERS, Peer, installed, read_from
from bench.plots import draw_scaling
from bench.profiling import kernel_table, part_table, profile_of, profiled
from bench.report import Epoch, Row, about, table
from bench.report_checks import (
    beside_table,
    compiled_table,
    error_table,
    extra_table,
    first_step_table,
    grid_table,
    largest_table,
    load_table,
    peak_table,
    point_table,
)
from bench.scaling import points
from bench.serve import Load, memory_under_load, overload_of, overloading, running, under_load, write_model
from bench.sizes import SMALL_AND_LARGE, default_works, dense_sizes, step_sizes
from bench.tilings import compile_all, step_tilings, tiling_table, update_tilings
from bench.workloads import (
    TITLES,
    DenseSizes,
    Step,
    StepSizes,
    Timed,
    Truth,
    Work,
    dense_inputs,
    error,
    products_read,
    tolerance,
)
from vlhmm.precision import Precision

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

DeviceName = Annotated[str, typer.Option("--device", help="cuda or cpu.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results there.")]
PeersFrom = Annotated[
    Path | None, typer.Option("--peers-from", help="A folder with unpacked peers, for where nothing can be installed.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes: to see that everything runs.")]
DEFAULT_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
    where = _device(device)
    _read_peers(peers_from)
    works = _works(only, where, quick)
    numbers = _numbers(states)
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
        _write(json_file, where, begun, rates, found)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    shown = _shown(console)
    for part in (table(rows, epochs, rates), error_table(errors), peak_table(held), first_step_table(firsts)):
        if part.row_count:
            shown.print(part)


@app.command()
def scaling(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    seconds: Annotated[float, typer.Option(help="For all points together; the rest is left out.")] = 60.0,
    search: Annotated[float, typer.Option(help="Seconds for each search for the most states; 0: none.")] = 15.0,
    quick: Quick = False,
) -> None:
    """Cost against length, batch, states, states of a block and blocks, and on a GPU the most states that fit."""
    begun = time.perf_counter()
    where = _device(device)
    rates = measure_rates(where, quick)
    found = list(points(where, rates, seconds, quick))
    fit = largest(where, search, quick) if where.type == "cuda" and search > 0 else []
    shown = _shown(Console())
    shown.print(point_table(found))
    if fit:
        shown.print(largest_table(fit))
    parts = {"points": [asdict(point) for point in found], "largest": [asdict(one) for one in fit]}
    _write(json_file, where, begun, rates, parts)


@app.command()
def beside(device: DeviceName = DEFAULT_DEVICE, json_file: JsonFile = None, quick: Quick = False) -> None:
    """What a training step costs while others are trained on the same device."""
    begun = time.perf_counter()
    where = _device(device)
    found = list(side_by_side(where, quick))
    _shown(Console()).print(beside_table(found))
    _write(json_file, where, begun, measure_rates(where, quick), {"beside": [asdict(one) for one in found]})


@app.command()
def distributed(device: DeviceName = DEFAULT_DEVICE, json_file: JsonFile = None, quick: Quick = False) -> None:
    """Training steps over several processes on a CPU; on a GPU what a world of one costs, and what clusters would make of it."""
    begun, where = time.perf_counter(), _device(device)
    found = on_gpu(where, quick) if where.type == "cuda" else on_cpu(quick)
    shown = _shown(Console())
    for part in tables(found):
        shown.print(part)
    _write(json_file, where, begun, measure_rates(where, quick), found)


@app.command()
def hang(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    seconds: Annotated[float, typer.Option(help="Of all phases together.")] = 120.0,
    quick: Quick = False,
) -> None:
    """Stress-tests cooperative kernels for deadlocks; exit status 1 if a wait reached its bound, 3 if all hung."""
    begun, where = time.perf_counter(), _device(device)
    rates, nodes = measure_rates(where, quick), cooperative_nodes(where)

    def write(found: list[Phase]) -> None:
        for phase in found:
            print(
                f"{phase.name}: {phase.outcome} after {phase.seconds} s, steps {phase.steps}",
                *phase.reports,
                sep="\n  ",
            )
        _write(json_file, where, begun, rates, {"graph": [nodes], "phases": hang_json(found)})

    found = provoke_hang(where, seconds, quick, write)
    write(found)
    raise typer.Exit(int(any(phase.outcome != "ended" for phase in found)))


@app.command()
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
    _shown(Console()).print(compiled_table(found))
    _write(json_file, where, begun, measure_rates(where, quick), {"constraints": [asdict(one) for one in found]})


@app.command()
def serve(
    folder: Annotated[Path | None, typer.Argument(help="A model folder; without it an untrained model.")] = None,
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = "1,8,64,256",
    seconds: Annotated[float, typer.Option(help="For each number of clients.")] = 10.0,
    overload: Annotated[
        int,
        typer.Option(help="Clients of an overload; more where these do not send four times what saturates; 0: none."),
    ] = 1024,
    soak: Annotated[float, typer.Option(help="Minutes of overload in which memory is watched; 0: none.")] = 0.0,
    prompt: Annotated[str, typer.Option(help="What every request continues.")] = "return the",
    states: Annotated[int, typer.Option(help="Of the untrained model.")] = 4096,
    max_requests: Annotated[int, typer.Option(help="Requests at a time that the server takes.")] = 512,
) -> None:
    """Load on `vlhmm serve` over the loopback device."""
    begun = time.perf_counter()
    where = _device(device)
    numbers = _numbers(clients) or ()
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made) / "model"
            write_model(folder, states)
            prompt = "w1 w2"
        console = Console()
        loads: list[Load] = []
        # Memory is watched for longer than loads are measured: it is kept until it is measured again.
        parts = _kept(json_file, "memory")
        with running(folder, where.type, "--max-requests", str(max_requests)) as (url, pid):
            for number in (*numbers, *([overload] if overload else [])):
                overloaded = bool(overload) and len(loads) == len(numbers)
                if overloaded:
                    number = overload = max(overload, overloading(loads, max_requests))
                console.print(f"{number} clients ...", style="dim")
                loads.append(under_load(url, number, seconds, prompt))
                parts["serve"] = [asdict(one) for one in loads]
                if overloaded:
                    parts["overload"] = [asdict(overload_of(loads))]
                _write(json_file, where, begun, measure_rates(where, quick=True), parts)
            shown = _shown(console)
            shown.print(load_table(loads))
            if soak:
                held = memory_under_load(url, pid, overload or max(numbers), soak, prompt)
                parts["memory"] = [asdict(held)]
                shown.print(load_table([held.load]))
                shown.print(
                    f"memory over these {soak:g} minutes: {held.first_mib:,.0f} MiB after a tenth, "
                    f"{held.last_mib:,.0f} MiB at the end, {held.highest_mib:,.0f} MiB at most"
                )
        _write(json_file, where, begun, measure_rates(where, quick=True), parts)


@app.command()
def explore(
    json_file: JsonFile = Path("bench/results/explore.json"),
    states: Annotated[int, typer.Option(help="Of the untrained model.")] = 1 << 16,
    words: Annotated[int, typer.Option(help="Of its vocabulary.")] = 50_000,
) -> None:
    """The explorer page of a large model in the system's Chromium."""
    begun, where = time.perf_counter(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as made:
        found = explored(Path(made), states, words)
    _write(json_file, where, begun, measure_rates(where, quick=True), {"explore": [asdict(found)]})
    console = Console()
    console.print(f"page: {found.page_bytes:,} bytes, made in {found.seconds_to_make:,.1f} s")
    console.print(f"first contentful paint: {found.first_contentful_paint_ms} ms, ready: {found.ready_ms} ms")
    for one in found.interactions:
        console.print(f"{one.name}: {one.longest_ms:g} ms, of which scripts {one.longest_handler_ms:g} ms")


@app.command()
def grid(
    json_file: JsonFile = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 5,
    peers_from: PeersFrom = None,
    quick: Quick = False,
) -> None:
    """Queries of small HMMs on a CPU, beside the peers that are installed, over a grid of sizes."""
    begun = time.perf_counter()
    where = torch.device("cpu")
    _read_peers(peers_from)
    rates = measure_rates(where, quick)
    found = []
    for cell in cells(repeat, quick):
        found.append(cell)
        # After each: what is stopped half way keeps what it has measured.
        _write(json_file, where, begun, rates, {"grid": [asdict(one) for one in found]})
    _shown(Console()).print(grid_table(found))


@app.command()
def tilings(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    only: Annotated[str, typer.Option(help="Some of W3b, W3c, W3d, W3e, with commas.")] = "W3c,W3e",
    quick: Quick = False,
) -> None:
    """The time of the kernels of a block-factored step by each tiling, checked against float64."""
    begun, where = time.perf_counter(), _device(device)
    works = [step for name in only.split(",") for step in ("W3b", "W3c", "W3d", "W3e") if step == name.strip()]
    if len(works) != len(only.split(",")):
        raise typer.BadParameter(f"{only!r} names others than W3b, W3c, W3d, W3e")
    found = []
    if where.type == "cuda":
        compile_all(works, quick, "bf16")
    for work in works:
        found += step_tilings(work, where, quick, "bf16" if where.type == "cuda" else "highest")
        found += update_tilings(work, where, quick)
        _shown(Console()).print(tiling_table([one for one in found if one.work == work]))
        _write(json_file, where, begun, measure_rates(where, True), {"tilings": [asdict(one) for one in found]})


@app.command()
def cpu(
    json_file: JsonFile = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 9,
    seconds: Annotated[float, typer.Option(help="For each engine in each row.")] = 1.5,
    peers_from: PeersFrom = None,
    quick: Quick = False,
) -> None:
    """All that is measured on a CPU: queries of 8 to 1,024 states, other work, and the grid; eight minutes on two idle cores."""
    begun, where, console = time.perf_counter(), torch.device("cpu"), Console()
    _read_peers(peers_from)
    rates = measure_rates(where, quick)
    parts: dict[str, list[dict[str, Any]]] = {"rows": [], "other": [], "grid": []}

    def note(part: str, one: dict[str, Any]) -> None:
        parts[part].append(one)
        _write(json_file, where, begun, rates, parts)

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
    shown = _shown(console)
    for part in (table(rows, [], rates), extra_table(other), grid_table(found)):
        shown.print(part)


@app.command()
def profile(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(profiled)}, with commas.")] = "W3c,W3d,W3e,W3b",
    states: Annotated[int, typer.Option(min=1, help="Number of states for W1, W2, W4, W5.")] = 512,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 30,
    quick: Quick = False,
) -> None:
    """The time of a call, of each kernel in it, and what its parts need at least."""
    begun = time.perf_counter()
    where = _device(device)
    works = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in works if name not in profiled]
    if unknown:
        raise typer.BadParameter(f"unknown work {unknown[0]!r}; known are {', '.join(profiled)}")
    rates = measure_rates(where, quick)
    shown = _shown(Console())
    found = []
    for work in works:
        found.append(profile_of(work, where, rates, states, repeat, quick))
        shown.print(kernel_table(found[-1]))
        shown.print(part_table(found[-1]))
        _write(json_file, where, begun, rates, {"profiles": [asdict(one) for one in found]})


@app.command()
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


def _shown(console: Console) -> Console:
    """Wide enough for reasons also where the output is a file."""
    return console if console.is_terminal else Console(width=150)


def _kept(json_file: Path | None, *names: str) -> dict[str, list[dict[str, Any]]]:
    """These parts of a result file that exists, each with the command and the commit that made it."""
    if json_file is None or not json_file.exists():
        return {}
    before = json.loads(json_file.read_text(encoding="utf-8"))
    made_by = {name: before[name] for name in ("command", "commit") if name in before}
    return {name: [{**made_by, **one} for one in before[name]] for name in names if name in before}


def _write(
    json_file: Path | None, device: torch.device, begun: float, rates: Rates, parts: dict[str, list[dict[str, Any]]]
) -> None:
    if json_file is not None:
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        found = about(device, command, time.perf_counter() - begun, rates) | parts
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def dense_row(
    work: Work,
    sizes: DenseSizes,
    device: torch.device,
    rates: Rates,
    repeat: int,
    with_peers: bool,
    precision: Precision = QUERY_PRECISION,
    max_seconds: float = MAX_SECONDS,
) -> Row:
    inputs = dense_inputs(sizes, device)
    ours = Ours(precision)
    peers = [peer for peer in PEERS if with_peers and device.type in peer.devices]
    engines: list[Ours | Peer] = [ours, *(peer for peer in peers if installed(peer))]
    allowed = tolerance(work, device)
    results = compare(
        {engine.name: partial(engine.timed, work, inputs) for engine in engines},
        partial(error, work, Truth(inputs)),
        allowed,
        device,
        repeat,
        max_seconds,
    )
    missing = [Result(peer.name, message="not installed") for peer in peers if not installed(peer)]
    of_ours, *of_peers = (
        replace(result, precision=engine.reads(work, device))
        for result, engine in zip(
            [*results, *missing], [*engines, *(one for one in peers if not installed(one))], strict=True
        )
    )
    floor = 1e3 * dense_needs(work, sizes, rates).seconds(rates)
    return Row(work, asdict(sizes), allowed, floor, of_ours, of_peers, of_ours.precision)


def step_row(work: Step, sizes: StepSizes, device: torch.device, rates: Rates, repeat: int, with_peers: bool) -> Row:
    inputs = step_inputs(sizes, device)
    engines: dict[str, Callable[[], Timed]] = {Ours.name: partial(timed_step, inputs)}
    if with_peers:
        engines[original.NAME] = partial(original.timed_eager_step, inputs)
    allowed = tolerance(work, device)
    results = compare(engines, partial(original.step_error, inputs), allowed, device, repeat)
    floor = 1e3 * step_needs(sizes, rates).seconds(rates)
    reads = products_read(inputs.model.settings.precision, device)
    ours = replace(results[0], precision=reads)
    return Row(work, {**asdict(sizes), "states": sizes.states}, allowed, floor, ours, results[1:], reads)


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device is {name!r}; known are cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no CUDA device is there: use --device cpu")
    return torch.device(name)


def _read_peers(folder: Path | None) -> None:
    if folder is not None:
        try:
            read_from(folder)
        except ValueError as reason:
            raise typer.BadParameter(str(reason)) from None


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
    app()
