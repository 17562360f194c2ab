"""`vlhmm compare | export`: what to do with runs that are done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.evaluation import Split
from vlhmm.cli.options import DataDir, DeviceOption, Json, choose_device
from vlhmm.cli.show import duration, line, message, print_json, print_table, size, table, watch

if TYPE_CHECKING:
    from vlhmm.reports import Comparison


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm compare runs/first runs/second\n  vlhmm compare runs/* --split valid --json"
    )(compare)
    app.command(epilog="Example:\n  vlhmm export runs/demo --out models/demo")(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="The new folder.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there already.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a run's best model into a folder to ship, without the training state, and check the copy."""
    from vlhmm.reports import export_run

    exported = export_run(run, out, force=force)
    if as_json:
        print_json(exported)
        return
    line(f"{out}: {size(exported.num_bytes)}, of {size(exported.run_bytes)} in {run}")
    line("loaded again: the weights and the scores are those of the run's best checkpoint")


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; each is compared with the first.")
    ],
    split: Annotated[Split, typer.Option("--split", help="The part of the corpus that is scored.")] = Split.test,
    samples: Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Samples of the bootstrap.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the bootstrap.")] = 0,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Settings that differ, figures side by side, and a paired test on the held-out text."""
    from vlhmm.reports import comparing

    steps = comparing(
        *runs, split=split.value, data_dir=data_dir, num_samples=samples, seed=seed, device=choose_device(device)
    )
    found = watch(steps, "scoring")
    if as_json:
        print_json(found)
    else:
        _print_comparison(found)


def _print_comparison(found: Comparison) -> None:
    names = [one.folder for one in found.runs]
    if found.settings:
        shown = table("setting", *names)
        for name, values in found.settings.items():
            shown.add_row(name, *map(_shown, values))
        print_table(shown)
    else:
        line("no setting differs")
    line()
    shown = table(f"figures, {found.split}", *names, right=names)
    evaluations = [one.evaluation for one in found.runs]
    rows: dict[str, list[str | None]] = {
        "perplexity": [None if one is None else f"{one.perplexity:,.2f}" for one in evaluations],
        "bits per byte": [
            None if one is None or one.bits_per_byte is None else f"{one.bits_per_byte:.4f}" for one in evaluations
        ],
        "tokens": [None if one is None else f"{one.num_tokens:,}" for one in evaluations],
        "states": [f"{one.num_states:,}" for one in found.runs],
        "parameters": [f"{one.num_parameters:,}" for one in found.runs],
        "training": [None if one.train_seconds is None else duration(one.train_seconds) for one in found.runs],
    }
    for label, figures in rows.items():
        shown.add_row(label, *(figure or "-" for figure in figures))
    print_table(shown)
    if found.tests:
        line()
        _print_tests(found)
    for run, reason in found.not_tested.items():
        message(f"{run} is not tested: {reason}")


def _print_tests(found: Comparison) -> None:
    first = found.tests[0]
    numbers = ("nats per token", "interval", "bits per byte")
    shown = table(f"gain over {first.baseline}", *numbers, "", right=numbers)
    for one in found.tests:
        verdict = "no difference shown" if not one.significant else "better" if one.difference > 0 else "worse"
        bits = "-" if one.bits_per_byte is None else f"{one.bits_per_byte[0]:+.4f}"
        shown.add_row(one.run, f"{one.difference:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}", bits, verdict)
    print_table(shown)
    line(
        f"paired bootstrap of {first.num_units:,} {first.unit}, {first.num_samples:,} samples, {first.level:.0%} interval, seed {first.seed}"
    )


def _shown(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
