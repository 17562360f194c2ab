"""Commands that measure training, kernels, and how cost grows with every size."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from bench.beside import side_by_side
from bench.command_line import DEFAULT_DEVICE, DeviceName, JsonFile, Quick, device_named, wide, write_results
from bench.distributed import on_cpu, on_gpu, tables
from bench.floor import measure_rates
from bench.hang import Phase, cooperative_nodes
from bench.hang import as_json as hang_json
from bench.hang import run as provoke_hang
from bench.largest import largest
from bench.profiling import kernel_table, part_table, profile_of, profiled
from bench.report_checks import beside_table, largest_table, point_table
from bench.scaling import points
from bench.tilings import compile_all, step_tilings, tiling_table, update_tilings


def scaling(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    seconds: Annotated[float, typer.Option(help="For all points together; the rest is left out.")] = 60.0,
    search: Annotated[float, typer.Option(help="Seconds for each search for the most states; 0: none.")] = 15.0,
    quick: Quick = False,
) -> None:
    """Cost against length, batch, states, states of a block and blocks, and on a GPU the most states that fit."""
    begun = time.perf_counter()
    where = device_named(device)
    rates = measure_rates(where, quick)
    found = list(points(where, rates, seconds, quick))
    fit = largest(where, search, quick) if where.type == "cuda" and search > 0 else []
    shown = wide(Console())
    shown.print(point_table(found))
    if fit:
        shown.print(largest_table(fit))
    parts = {"points": [asdict(point) for point in found], "largest": [asdict(one) for one in fit]}
    write_results(json_file, where, begun, rates, parts)


def beside(device: DeviceName = DEFAULT_DEVICE, json_file: JsonFile = None, quick: Quick = False) -> None:
    """What a training step costs while others are trained on the same device."""
    begun = time.perf_counter()
    where = device_named(device)
    found = list(side_by_side(where, quick))
    wide(Console()).print(beside_table(found))
    write_results(json_file, where, begun, measure_rates(where, quick), {"beside": [asdict(one) for one in found]})


def distributed(device: DeviceName = DEFAULT_DEVICE, json_file: JsonFile = None, quick: Quick = False) -> None:
    """Training steps over several processes on a CPU; on a GPU what a world of one costs, and what clusters would make of it."""
    begun, where = time.perf_counter(), device_named(device)
    found = on_gpu(where, quick) if where.type == "cuda" else on_cpu(quick)
    shown = wide(Console())
    for part in tables(found):
        shown.print(part)
    write_results(json_file, where, begun, measure_rates(where, quick), found)


def hang(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    seconds: Annotated[float, typer.Option(help="Of all phases together.")] = 120.0,
    quick: Quick = False,
) -> None:
    """Stress-tests cooperative kernels for deadlocks; exit status 1 if a wait reached its bound, 3 if all hung."""
    begun, where = time.perf_counter(), device_named(device)
    rates, nodes = measure_rates(where, quick), cooperative_nodes(where)

    def write(found: list[Phase]) -> None:
        for phase in found:
            print(
                f"{phase.name}: {phase.outcome} after {phase.seconds} s, steps {phase.steps}",
                *phase.reports,
                sep="\n  ",
            )
        write_results(json_file, where, begun, rates, {"graph": [nodes], "phases": hang_json(found)})

    found = provoke_hang(where, seconds, quick, write)
    write(found)
    raise typer.Exit(int(any(phase.outcome != "ended" for phase in found)))


def tilings(
    device: DeviceName = DEFAULT_DEVICE,
    json_file: JsonFile = None,
    only: Annotated[str, typer.Option(help="Some of W3b, W3c, W3d, W3e, with commas.")] = "W3c,W3e",
    quick: Quick = False,
) -> None:
    """The time of the kernels of a block-factored step by each tiling, checked against float64."""
    begun, where = time.perf_counter(), device_named(device)
    works = [step for name in only.split(",") for step in ("W3b", "W3c", "W3d", "W3e") if step == name.strip()]
    if len(works) != len(only.split(",")):
        raise typer.BadParameter(f"{only!r} names others than W3b, W3c, W3d, W3e")
    found = []
    if where.type == "cuda":
        compile_all(works, quick, "bf16")
    for work in works:
        found += step_tilings(work, where, quick, "bf16" if where.type == "cuda" else "highest")
        found += update_tilings(work, where, quick)
        wide(Console()).print(tiling_table([one for one in found if one.work == work]))
        write_results(json_file, where, begun, measure_rates(where, True), {"tilings": [asdict(one) for one in found]})


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
    where = device_named(device)
    works = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in works if name not in profiled]
    if unknown:
        raise typer.BadParameter(f"unknown work {unknown[0]!r}; known are {', '.join(profiled)}")
    rates = measure_rates(where, quick)
    shown = wide(Console())
    found = []
    for work in works:
        found.append(profile_of(work, where, rates, states, repeat, quick))
        shown.print(kernel_table(found[-1]))
        shown.print(part_table(found[-1]))
        write_results(json_file, where, begun, rates, {"profiles": [asdict(one) for one in found]})
