"""`vlhmm table`: runs the tables of a paper and shows them beside the paper's numbers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.options import DataDir, DeviceOption, Json, choose_device, read_corpus
from vlhmm.cli.show import duration, line, message, print_json, print_table, progress_bar, table

if TYPE_CHECKING:
    import torch

    from vlhmm.data import Corpus
    from vlhmm.experiments.row_training import RowStopped
    from vlhmm.experiments.rows import RowDone, RowEvent, RowRun
    from vlhmm.experiments.show import Shown, ShownRow, ShownTable
    from vlhmm.experiments.table_file import TableFile

RUNS = Path("runs/table")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.toml", help="A table; `vlhmm table list` names them.")]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", metavar="CORPUS", help="Another text; the results go to --results.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One setting of every row that has it; repeat it. Needs --results."
    ),
]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="Where results are; default: results/ beside FILE.")
]


def register(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="Run the tables of a paper, and show them beside its numbers.",
        epilog="Examples:\n  vlhmm table list\n  vlhmm table show experiments/chiu2020/table1-ptb.toml",
    )
    commands.command(
        epilog="Examples:\n  vlhmm table run experiments/chiu2020/table1-ptb.toml --row 'KN 5-gram'\n"
        "  vlhmm table run experiments/chiu2020/figure3.toml --device cuda --jobs 4 --max-seconds 3000\n"
        "  vlhmm table run experiments/chiu2020/table3.toml --corpus pydocs --set dim=32 --set epochs=1 --results trial"
    )(run)
    commands.command(
        epilog="Examples:\n  vlhmm table show experiments/chiu2020/table1-ptb.toml\n"
        "  vlhmm table show experiments/chiu2020/figure3.toml --plot\n"
        "  vlhmm table show experiments/chiu2020/table3.toml --json"
    )(show)
    commands.command("list", epilog="Example:\n  vlhmm table list")(list_tables)
    app.add_typer(commands, name="table")


def run(
    file: FileArgument,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="NAME", help="This row alone; repeat it. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Decides everything random.")] = 0,
    device: DeviceOption = options.Device.auto,
    force: Annotated[bool, typer.Option("--force", help="Forget the rows' results, and run them again.")] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", metavar="S", help="Stop training after S; the same command goes on later."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", metavar="N", min=1, help="Train N rows at a time on one device; measure them alone."),
    ] = 1,
    corpus_name: CorpusOption = None,
    changes: Changes = None,
    results: Results = None,
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Training runs that can be taken up again.")
    ] = RUNS,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Run the rows of a table that have no result yet, cheapest first."""
    from dataclasses import asdict

    from vlhmm.experiments.results import checksums, results_folders
    from vlhmm.experiments.rows import RowDone, RowRun, run_row
    from vlhmm.experiments.show import show_table

    chosen_device = choose_device(device)
    asked = _read(file, corpus_name, changes, results)
    wanted = [asked.row(name) for name in rows] if rows else list(asked.rows)
    text = checksums(asked.corpus, data_dir)
    folders = results_folders(file) if results is None else (results,)
    waiting = [
        RowRun(asked, row, seed, text, folders, runs, _command(file, row.name, seed, corpus_name, changes))
        for row in sorted(wanted, key=lambda row: row.seconds)
    ]
    if not force:
        there = [one for one in waiting if one.found()]
        waiting = [one for one in waiting if one not in there]
        if there:
            message(f"{len(there)} of {len(wanted)} rows have their results already")
    corpus = read_corpus(asked.corpus, data_dir) if waiting else None
    begun = time.monotonic()
    done: list[RowDone] = []
    status = 0
    if jobs > 1 and corpus is not None:
        if force:
            for one in waiting:
                one.discard()
            force = False
        _train_together(waiting, corpus, chosen_device, jobs, max_seconds)
    for one in waiting:
        assert corpus is not None
        left = None if max_seconds is None else max_seconds - (time.monotonic() - begun)
        if left is not None and left <= 0:
            message(f"out of time before {one.row.name!r}; the same command goes on")
            break
        last = _watch(run_row(one, corpus, chosen_device, force=force, max_seconds=left), one)
        if not isinstance(last, RowDone):
            status = 130 if last.reason == "interrupted" else 0
            break
        done.append(last)
    if as_json:
        print_json([asdict(one.result) for one in done])
    elif status == 0:
        _print(show_table(asked, text, folders))
    return status


def show(
    file: FileArgument,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the figure and the learning curves beside FILE.")] = False,
    corpus_name: CorpusOption = None,
    changes: Changes = None,
    results: Results = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The paper's numbers, ours, and the difference; what the paper claims, and whether it holds."""
    from vlhmm.experiments.results import checksums, results_folders
    from vlhmm.experiments.show import show_table

    asked = _read(file, corpus_name, changes, results)
    folders = results_folders(file) if results is None else (results,)
    shown = show_table(asked, checksums(asked.corpus, data_dir), folders)
    if as_json:
        print_json(shown.to_dict())
    else:
        _print(shown)
    if plot:
        _plot(shown, file if results is None else results / file.name)


def list_tables(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look for tables.")] = Path("experiments"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The tables there are, and how many of their rows have been run."""
    from vlhmm.experiments.results import checksums, find_seeds, results_folders
    from vlhmm.experiments.table_file import read_table

    files = sorted(folder.rglob("*.toml"))
    if not files:
        raise ValueError(f"0 tables under {folder}: name the folder that holds them")
    listed = []
    for file in files:
        found = read_table(file)
        text = checksums(found.corpus, data_dir)
        num_run = sum(bool(find_seeds(results_folders(file), row, text)) for row in found.rows)
        seconds = sum(row.seconds for row in found.rows)
        listed.append((file, found, num_run, seconds))
    if as_json:
        print_json(
            [
                {"file": str(file), "title": one.title, "rows": len(one.rows), "run": num_run, "seconds": seconds}
                for file, one, num_run, seconds in listed
            ]
        )
        return
    shown = table("file", "title", "rows", "run", "about, on one H200", right=("rows", "run", "about, on one H200"))
    for file, one, num_run, seconds in listed:
        shown.add_row(str(file), one.title, str(len(one.rows)), str(num_run), duration(seconds))
    print_table(shown)


def _read(file: Path, corpus_name: str | None, changes: list[str] | None, results: Path | None) -> TableFile:
    from vlhmm.cli.training import key_value
    from vlhmm.experiments.table_file import read_table

    if (corpus_name or changes) and results is None:
        raise ValueError(
            "--corpus and --set make other results than the table's own: say with --results where they are"
        )
    return read_table(file).with_changes(corpus_name, dict(key_value(change) for change in changes or ()))


def _command(file: Path, row: str, seed: int, corpus_name: str | None, changes: list[str] | None) -> str:
    """What decides the result, as a user would type it; where things are kept is left out."""
    absolute = file.absolute()
    here = Path.cwd()
    shown = absolute.relative_to(here) if absolute.is_relative_to(here) else Path(file.name)
    words = ["vlhmm", "table", "run", str(shown), "--row", row]
    words += ["--seed", str(seed)] if seed else []
    words += ["--corpus", Path(corpus_name).name] if corpus_name else []
    for change in changes or ():
        words += ["--set", change]
    return shlex.join(words)


def _train_together(
    runs: list[RowRun], corpus: Corpus, device: torch.device, jobs: int, max_seconds: float | None
) -> None:
    """Trains rows side by side, one bar for all."""
    from vlhmm.experiments.side_by_side import train_side_by_side
    from vlhmm.train import CheckEvent, StepEvent

    progress: dict[str, tuple[int, int]] = {}
    best: dict[str, float] = {}
    with progress_bar(f"{len(runs)} rows, {jobs} at a time", None) as shown:
        # Rows that are the same under two names are trained once.
        apart = list({run.folder: run for run in runs}.values())
        for run, event in train_side_by_side(apart, corpus, device, jobs, max_seconds):
            match event:
                case StepEvent():
                    progress[run.row.name] = event.step, event.num_steps
                case CheckEvent():
                    best[run.row.name] = event.best_perplexity
            note = ", ".join(f"{name} {value:,.1f}" for name, value in best.items())
            steps, num_steps = (
                (sum(of_each) for of_each in zip(*progress.values(), strict=True)) if progress else (0, 0)
            )
            shown.update(steps, num_steps or None, note)


def _watch(events: Iterator[RowEvent], run: RowRun) -> RowDone | RowStopped:
    """Shows a row while it runs."""
    from vlhmm.experiments.row_training import RowStopped, Working
    from vlhmm.experiments.rows import RowDone
    from vlhmm.train import CheckEvent, StepEvent

    begun = time.monotonic()
    name = run.row.name
    best = ""
    with progress_bar(name, None) as shown:
        for event in events:
            match event:
                case StepEvent():
                    shown.update(event.step, event.num_steps, f"loss {event.loss:.3f}{best}", name)
                case CheckEvent():
                    best = f"  best valid perplexity {event.best_perplexity:,.1f}"
                case Working():
                    shown.update(0, note=event.what, description=name)
                case RowDone():
                    took = duration(time.monotonic() - begun)
                    message(f"{name}: {_summary(event)}, {took} -> {event.path}")
                    return event
                case RowStopped():
                    message(f"{name}: stopped at step {event.step:,} of {event.num_steps:,}; the same command goes on")
                    return event
    raise AssertionError("a row always ends with RowDone or RowStopped")


def _summary(done: RowDone) -> str:
    from vlhmm.experiments.quantities import QUANTITIES, written

    result = done.result
    if result.status == "diverged":
        return f"diverged ({result.message})"
    shown = [name for name in ("train", "valid", "test") if name in result.measured]
    return ", ".join(f"{QUANTITIES[name].heading} {written(name, result.measured[name])}" for name in shown)


def _print(shown: ShownTable) -> None:
    line(
        f"{shown.table.title}  ({', '.join(part for part in (shown.table.source, shown.table.corpus) if part)})", "bold"
    )
    _print_rows(shown)
    for text in (shown.table.note, *(f"{one.row.name}: {one.row.note}" for one in shown.rows if one.row.note)):
        if text:
            line()
            line(text, style="dim")
    if shown.verdicts:
        line()
        claims = table("claim", "", "with our numbers")
        for verdict in shown.verdicts:
            claims.add_row(verdict.text, verdict.outcome, verdict.numbers)
        print_table(claims)


def _print_rows(shown: ShownTable) -> None:
    """A block for every quantity of which the paper says something; the others side by side."""
    from vlhmm.experiments.quantities import QUANTITIES

    compared = [name for name in shown.table.columns if any(name in row.row.paper for row in shown.rows)]
    for name in compared:
        printed = table(QUANTITIES[name].heading, "paper", "ours", "difference", right=("paper", "ours", "difference"))
        for row in shown.rows:
            cell = row.cells[name]
            if cell.paper is not None or cell.ours is not None or row.status != "finished":
                printed.add_row(row.row.name, _paper(name, cell), _ours(name, row), _difference(name, cell))
        line()
        print_table(printed)
    others = [name for name in shown.table.columns if name not in compared]
    if others:
        headings = [QUANTITIES[name].heading for name in others]
        printed = table("ours alone", *headings, right=headings)
        for row in shown.rows:
            printed.add_row(row.row.name, *(_ours(name, row) for name in others))
        line()
        print_table(printed)


def _paper(name: str, cell: Shown) -> str:
    from vlhmm.experiments.quantities import written

    return "-" if cell.paper is None else written(name, cell.paper)


def _ours(name: str, row: ShownRow) -> str:
    """The mean, and from where to where the seeds reach."""
    from vlhmm.experiments.quantities import written

    ours = row.cells[name].ours
    if ours is None:
        return "-" if row.status == "finished" else row.status
    mean = written(name, ours.mean)
    return mean if ours.low == ours.high else f"{mean} ({written(name, ours.low)} to {written(name, ours.high)})"


def _difference(name: str, cell: Shown) -> str:
    from vlhmm.experiments.quantities import written

    if cell.difference is None or cell.percent is None:
        return ""
    return f"{'+' if cell.difference >= 0 else '-'}{written(name, abs(cell.difference))} ({cell.percent:+.1f} %)"


def _plot(shown: ShownTable, base: Path) -> None:
    from vlhmm.experiments.figures import draw_curves, draw_points

    drawn: list[tuple[Path, Any]] = [(base.with_name(f"{base.stem}-curves.png"), draw_curves)]
    if shown.table.figure is not None:
        drawn.insert(0, (base.with_suffix(".png"), draw_points))
    for path, draw in drawn:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(shown, path)
        message(f"drawn: {path}")
