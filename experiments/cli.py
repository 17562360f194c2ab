"""`python -m experiments`: runs the tables of a paper and shows them beside the paper's numbers."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli_runs import RowRunner
from experiments.cli_show import draw_figures, print_shown, print_verdict
from experiments.cli_verify import verify_rows
from vlhmm.cli import Commands, options
from vlhmm.cli.options import DataDir, DeviceOption, Json, choose_device
from vlhmm.cli.show import duration, line, message, print_json, print_table, table

if TYPE_CHECKING:
    from experiments.show import ShownTable
    from experiments.table_file import Row, TableFile

RUNS = Path("runs/table")

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="A table; `python -m experiments list` names them.")
]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look for tables.")]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", metavar="CORPUS", help="Another text; the results go to --results.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One setting of every row that has it; repeat it. Needs --results."
    ),
]
Part = Annotated[
    int | None,
    typer.Option(
        "--tokens", metavar="N", min=1, help="At most the first N tokens of the training text. Needs --results."
    ),
]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="Where results are; default: results/ beside FILE.")
]


def commands() -> typer.Typer:
    app = typer.Typer(
        cls=Commands,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Run the tables of a paper, and show them beside its numbers.",
        epilog="Examples:\n  python -m experiments list\n  python -m experiments show experiments/chiu2020/table1-ptb.toml",
    )
    app.command(
        epilog="Examples:\n  python -m experiments run experiments/chiu2020/table1-ptb.toml --row 'KN 5-gram'\n"
        "  python -m experiments run experiments/chiu2020/figure3.toml --device cuda --jobs 4 --max-seconds 3000\n"
        "  python -m experiments run experiments/lee2025/table1.toml experiments/lee2025/table2.toml --device cuda --jobs 3\n"
        "  python -m experiments run experiments/chiu2020/table3.toml --corpus pydocs --set dim=32 --set epochs=1 --results trial\n"
        "  python -m experiments run experiments/chiu2020/table1-ptb.toml --row 'KN 5-gram' --verify"
    )(run)
    app.command(
        epilog="Examples:\n  python -m experiments show experiments/chiu2020/table1-ptb.toml\n"
        "  python -m experiments show experiments/chiu2020/figure3.toml --plot\n"
        "  python -m experiments show experiments/chiu2020/table3.toml --json"
    )(show)
    app.command("list", epilog="Example:\n  python -m experiments list")(list_tables)
    app.command(epilog="Example:\n  python -m experiments claims experiments/lee2025")(claims)
    return app


def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.toml", help="Tables; `python -m experiments list` names them.")
    ],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--row",
            metavar="NAME",
            help="This row alone, of every FILE that has it or of one (table2/NAME); repeat it: they run in that order. Default: all.",
        ),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="Decides everything random; repeat it. Default: those of FILE, else 0."
        ),
    ] = None,
    device: DeviceOption = options.Device.auto,
    force: Annotated[bool, typer.Option("--force", help="Forget the rows' results, and run them again.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Train rows that have results anew, in a scratch folder, and compare: exit status 1 where a perplexity differs "
            "by more than 1 % and more than the seeds do.",
        ),
    ] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", min=0, metavar="S", help="Stop training after S; the same command goes on later."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="Train N rows at a time on one device, the longest first unless named; steps are timed alone all the same.",
        ),
    ] = 1,
    corpus_name: CorpusOption = None,
    changes: Changes = None,
    tokens: Part = None,
    results: Results = None,
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Training runs that can be taken up again.")
    ] = RUNS,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Run the rows of tables that have no result yet, cheapest first.

    Where a row tries learning rates, those short trainings come first. With --verify, run those that have a result, and
    compare.
    """
    from experiments.plan import RunPlan
    from experiments.results import results_folders
    from experiments.rows import RowRun
    from experiments.show import show_table
    from experiments.texts import checksums

    if verify and (force or max_seconds is not None):
        raise ValueError(
            "--verify keeps results and begins every training anew: leave out "
            + ("--force" if force else "--max-seconds, or name fewer rows with --row")
        )
    runner = RowRunner(choose_device(device), jobs, max_seconds, data_dir, runs, keeps=not verify)
    tables = [_read(file, corpus_name, changes, tokens, results) for file in files]
    texts = {table.corpus: checksums(table.corpus, data_dir) for table in tables}
    folders = {table.path: results_folders(table.path) if results is None else (results,) for table in tables}
    wanted = _chosen_rows(tables, rows, longest_first=jobs > 1)
    if verify:
        return verify_rows(runner, wanted, texts, folders, seeds=seeds or (), named=bool(rows), as_json=as_json)

    def planned(asked: TableFile, row: Row, seed: int) -> RowRun:
        command = _command(asked.path, row.name, seed, corpus_name, changes, tokens)
        return RowRun(asked, row, seed, texts[asked.corpus], folders[asked.path], runs, command)

    plan = RunPlan(wanted, planned, seeds=seeds or (), force=force)
    status = runner(plan, force=force)
    if status is None:
        for row in plan.unsettled():
            message(f"{row.name}: left out, since a trial of its learning rates failed")
    if as_json:
        print_json([asdict(one.result) for one in runner.done])
    elif not status:
        for number, asked in enumerate(tables):
            if number:
                line()
            print_shown(show_table(asked, texts[asked.corpus], folders[asked.path]))
    if runner.failed:
        raise runner.failed[0]
    return status or 0


def _chosen_rows(tables: list[TableFile], names: list[str] | None, longest_first: bool) -> list[tuple[TableFile, Row]]:
    """The rows to run, in order: those named, by a name that must be in one of the tables, or all, cheapest or longest first."""
    every = [(table, row) for table in tables for row in table.rows]
    if not names:
        # Side by side none is then left alone at the end.
        return sorted(every, key=lambda one: one[1].seconds, reverse=longest_first)
    chosen: list[tuple[TableFile, Row]] = []
    for name in names:
        named = [(table, row) for table, row in every if name in (row.name, f"{table.name}/{row.name}")]
        if not named:
            tables[-1].row(name)
        chosen += [one for one in named if one not in chosen]
    return chosen


def show(
    file: FileArgument,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the figure and the learning curves beside FILE.")] = False,
    corpus_name: CorpusOption = None,
    changes: Changes = None,
    tokens: Part = None,
    results: Results = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The paper's numbers, ours, and the difference; what the paper claims, and whether it holds."""
    from experiments.results import results_folders
    from experiments.show import show_table
    from experiments.texts import checksums

    asked = _read(file, corpus_name, changes, tokens, results)
    folders = results_folders(file) if results is None else (results,)
    shown = show_table(asked, checksums(asked.corpus, data_dir), folders)
    if plot:
        # First: a reader of only the beginning of a table closes the pipe, which ends the command.
        draw_figures(shown, file if results is None else results / file.name)
    if as_json:
        print_json(shown.to_dict())
    else:
        print_shown(shown)


def list_tables(
    folder: FolderArgument = Path("experiments"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The tables there are, and how many of their rows have been run."""
    listed = []
    for file, found in _tables_under(folder, data_dir):
        num_run = sum(row.status != "not run" for row in found.rows)
        seconds = sum(row.row.seconds * len(row.row.seeds) for row in found.rows)
        listed.append((file, found.table, num_run, seconds))
    if as_json:
        print_json(
            [
                {"file": str(file), "title": one.title, "rows": len(one.rows), "run": num_run, "seconds": seconds}
                for file, one, num_run, seconds in listed
            ]
        )
        return
    numbers = ("rows", "run", "about, on one H200")
    shown = table("file", "title", *numbers, right=numbers, whole=("file",))
    for file, one, num_run, seconds in listed:
        shown.add_row(str(file), one.title, str(len(one.rows)), str(num_run), duration(seconds))
    print_table(shown)


def claims(
    folder: FolderArgument = Path("experiments"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """What the papers claim, and whether it holds with our numbers, for all tables of a folder."""
    judged = [(file, verdict) for file, found in _tables_under(folder, data_dir) for verdict in found.verdicts]
    if as_json:
        print_json([{"file": str(file), **asdict(verdict)} for file, verdict in judged])
        return
    for file, verdict in judged:
        print_verdict(verdict, f"{file.stem}: {verdict.text}")
    line()
    outcomes = [verdict.outcome for _, verdict in judged]
    line(", ".join(f"{outcomes.count(each)} {each}" for each in ("supported", "contradicted", "not run")))


def _tables_under(folder: Path, data_dir: Path | None) -> list[tuple[Path, ShownTable]]:
    from experiments.results import results_folders
    from experiments.show import show_table
    from experiments.table_file import read_table
    from experiments.texts import checksums

    files = sorted(folder.rglob("*.toml"))
    if not files:
        raise ValueError(f"0 tables under {folder}: name the folder that holds them")
    tables = [read_table(file) for file in files]
    texts = {one.corpus: checksums(one.corpus, data_dir) for one in tables}
    return [(one.path, show_table(one, texts[one.corpus], results_folders(one.path))) for one in tables]


def _read(
    file: Path, corpus_name: str | None, changes: list[str] | None, tokens: int | None, results: Path | None
) -> TableFile:
    from experiments.table_file import read_table
    from vlhmm.cli.settings import key_value

    if (corpus_name or changes or tokens) and results is None:
        raise ValueError(
            "--corpus, --set and --tokens make other results than the table's own: say with --results where they are"
        )
    return read_table(file).with_changes(corpus_name, dict(key_value(change) for change in changes or ()), tokens)


def _command(
    file: Path, row: str, seed: int, corpus_name: str | None, changes: list[str] | None, tokens: int | None
) -> str:
    """What decides the result, as a user would type it; where things are kept is left out."""
    absolute = file.absolute()
    here = Path.cwd()
    shown = absolute.relative_to(here) if absolute.is_relative_to(here) else Path(file.name)
    words = ["python", "-m", "experiments", "run", str(shown), "--row", row]
    words += ["--seed", str(seed)] if seed else []
    words += ["--corpus", Path(corpus_name).name] if corpus_name else []
    for change in changes or ():
        words += ["--set", change]
    words += ["--tokens", str(tokens)] if tokens else []
    return shlex.join(words)
