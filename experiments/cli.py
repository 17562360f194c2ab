"""`python -m experiments`: runs the tables of a paper and shows them beside the paper's numbers."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli_runs import RowRunner
from experiments.cli_verify import verify_rows
from vlhmm.cli import Commands, options
from vlhmm.cli.options import DataDir, DeviceOption, Json, choose_device
from vlhmm.cli.show import duration, line, message, print_json, print_table, short, table

if TYPE_CHECKING:
    from experiments.claims import Verdict
    from experiments.show import Shown, ShownRow, ShownTable
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
            _print(show_table(asked, texts[asked.corpus], folders[asked.path]))
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
        _plot(shown, file if results is None else results / file.name)
    if as_json:
        print_json(shown.to_dict())
    else:
        _print(shown)


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
        _print_verdict(verdict, f"{file.stem}: {verdict.text}")
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


def _print(shown: ShownTable) -> None:
    line(
        f"{shown.table.title}  ({', '.join(part for part in (shown.table.source, shown.table.corpus) if part)})", "bold"
    )
    _print_rows(shown)
    notes = (
        shown.table.note,
        _rates(shown),
        *(f"{one.row.name}: {one.row.note}" for one in shown.rows if one.row.note),
    )
    for text in notes:
        if text:
            line()
            line(text, style="dim")
    if shown.verdicts:
        line()
        line("What the paper claims, with our numbers", style="dim")
        for verdict in shown.verdicts:
            _print_verdict(verdict, verdict.text)


def _print_verdict(verdict: Verdict, claim: str) -> None:
    line(f"{verdict.outcome:<12}  {claim}")
    line(f"{'':<12}  {verdict.numbers}", style="dim")


def _print_rows(shown: ShownTable) -> None:
    """A block for every quantity of which the paper says something; the others side by side."""
    from experiments.quantities import QUANTITIES

    compared = [name for name in shown.table.columns if any(name in row.row.paper for row in shown.rows)]
    for name in compared:
        printed = table(QUANTITIES[name].heading, "paper", "ours", "difference", right=("paper", "ours", "difference"))
        for row in shown.rows:
            cell = row.cells[name]
            if cell.paper is not None or cell.ours is not None or row.status != "finished":
                printed.add_row(_label(row), _paper(name, cell), _ours(name, row), _difference(name, cell))
        line()
        print_table(printed)
    others = [name for name in shown.table.columns if name not in compared]
    if others:
        headings = [QUANTITIES[name].heading for name in others]
        printed = table("ours alone", *headings, right=headings)
        for row in shown.rows:
            printed.add_row(_label(row), *(_ours(name, row) for name in others))
        line()
        print_table(printed)


def _label(row: ShownRow) -> str:
    """The row's name; where fewer seeds were run than the table wants, how many."""
    run, wanted = len(row.results), len(row.row.seeds)
    return f"{row.row.name}, {run} of {wanted} seeds" if 0 < run < wanted else row.row.name


def _rates(shown: ShownTable) -> str:
    """Which learning rates were chosen of which."""
    from experiments.rates import rate_of

    rows = [one.row for one in shown.rows if one.row.rates]
    if not rows:
        return ""
    chosen = [
        f"{row.name} {'?' if row.rate_is_open else f'{rate_of(row):g}'} of {', '.join(f'{rate:g}' for rate in row.rates)}"
        for row in rows
    ]
    return f"Learning rates, the best on validation after {short(shown.table.rate_tokens)} tokens: {'; '.join(chosen)}."


def _paper(name: str, cell: Shown) -> str:
    from experiments.quantities import written

    return "-" if cell.paper is None else written(name, cell.paper)


def _ours(name: str, row: ShownRow) -> str:
    """The mean, and from where to where the seeds reach."""
    from experiments.quantities import written

    ours = row.cells[name].ours
    if ours is None:
        return "-" if row.status == "finished" else row.status
    mean = written(name, ours.mean)
    return mean if ours.low == ours.high else f"{mean} ({written(name, ours.low)} to {written(name, ours.high)})"


def _difference(name: str, cell: Shown) -> str:
    from experiments.quantities import written

    if cell.difference is None or cell.percent is None:
        return ""
    size = written(name, abs(cell.difference))
    # What rounds to nothing has no sign of its own.
    sign = "-" if cell.difference < 0 and size != written(name, 0.0) else "+"
    return f"{sign}{size} ({round(cell.percent, 1) + 0.0:+.1f} %)"


def _plot(shown: ShownTable, base: Path) -> None:
    from experiments.figures import draw_curves, draw_points

    drawn: list[tuple[Path, Any]] = [(base.with_name(f"{base.stem}-curves.png"), draw_curves)]
    if shown.table.figure is not None:
        drawn.insert(0, (base.with_suffix(".png"), draw_points))
    for path, draw in drawn:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(shown, path)
        message(f"drawn: {path}")
