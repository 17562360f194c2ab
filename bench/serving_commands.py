"""Commands that measure what people meet: the server and the explorer page."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bench.command_line import (
    DEFAULT_DEVICE,
    DeviceName,
    JsonFile,
    device_named,
    kept_parts,
    numbers_in,
    wide,
    write_results,
)
from bench.explore import explored
from bench.floor import measure_rates
from bench.report_checks import load_table
from bench.serve import Load, memory_under_load, overload_of, overloading, running, under_load, write_model


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
    where = device_named(device)
    numbers = numbers_in(clients) or ()
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made) / "model"
            write_model(folder, states)
            prompt = "w1 w2"
        console = Console()
        loads: list[Load] = []
        # Memory is watched for longer than loads are measured: it is kept until it is measured again.
        parts = kept_parts(json_file, "memory")
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
                write_results(json_file, where, begun, measure_rates(where, quick=True), parts)
            shown = wide(console)
            shown.print(load_table(loads))
            if soak:
                held = memory_under_load(url, pid, overload or max(numbers), soak, prompt)
                parts["memory"] = [asdict(held)]
                shown.print(load_table([held.load]))
                shown.print(
                    f"memory over these {soak:g} minutes: {held.first_mib:,.0f} MiB after a tenth, "
                    f"{held.last_mib:,.0f} MiB at the end, {held.highest_mib:,.0f} MiB at most"
                )
        write_results(json_file, where, begun, measure_rates(where, quick=True), parts)


def explore(
    json_file: JsonFile = Path("bench/results/explore.json"),
    states: Annotated[int, typer.Option(help="Of the untrained model.")] = 1 << 16,
    words: Annotated[int, typer.Option(help="Of its vocabulary.")] = 50_000,
) -> None:
    """The explorer page of a large model in the system's Chromium."""
    begun, where = time.perf_counter(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as made:
        found = explored(Path(made), states, words)
    write_results(json_file, where, begun, measure_rates(where, quick=True), {"explore": [asdict(found)]})
    console = Console()
    console.print(f"page: {found.page_bytes:,} bytes, made in {found.seconds_to_make:,.1f} s")
    console.print(f"first contentful paint: {found.first_contentful_paint_ms} ms, ready: {found.ready_ms} ms")
    for one in found.interactions:
        console.print(f"{one.name}: {one.longest_ms:g} ms, of which scripts {one.longest_handler_ms:g} ms")
