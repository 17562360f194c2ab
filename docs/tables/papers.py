"""Tables of papers, and of our own experiments, from experiments/**/results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from experiments.claims import Verdict
from experiments.quantities import QUANTITIES, written
from experiments.rates import rate_of
from experiments.results import results_folders
from experiments.show import ShownRow, ShownTable, show_table
from experiments.table_file import read_table
from experiments.texts import checksums
from tables.common import ROOT, markdown_table, read_json

OUTCOMES = ("supported", "contradicted", "not run")


@cache
def shown_table(file: str) -> ShownTable:
    table = read_table(ROOT / file)
    return show_table(table, checksums(table.corpus, None), results_folders(table.path))


def table_files(folder: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob("*.toml"))]


def _ours(row: ShownRow, quantity: str) -> str:
    """The mean over seeds, and their range where there are several."""
    cell = row.cells[quantity].ours
    if cell is None:
        return "-" if row.status == "finished" else row.status
    mean = written(quantity, cell.mean)
    if cell.low == cell.high:
        return mean
    return f"{mean} ({written(quantity, cell.low)} to {written(quantity, cell.high)})"


def _paper(row: ShownRow, quantity: str) -> str:
    value = row.cells[quantity].paper
    return "-" if value is None else written(quantity, value)


def _name(row: ShownRow) -> str:
    run, wanted = len(row.results), len(row.row.seeds)
    return f"{row.row.name}, {run} of {wanted} seeds" if 0 < run < wanted else row.row.name


def experiment(file: str, *quantities: str) -> str:
    """The rows of one table file: for every quantity the paper's number, where it gives any, and ours."""
    shown = shown_table(file)
    headings, columns = ["row"], list[Callable[[ShownRow], str]]()
    for quantity in quantities or shown.table.columns:
        heading = QUANTITIES[quantity].heading
        if any(quantity in row.row.paper for row in shown.rows):
            headings.append(f"{heading}, paper")
            columns.append(lambda row, quantity=quantity: _paper(row, quantity))  # type: ignore[misc]
        headings.append(f"{heading}, ours")
        columns.append(lambda row, quantity=quantity: _ours(row, quantity))  # type: ignore[misc]
    return markdown_table(headings, ([_name(row), *(column(row) for column in columns)] for row in shown.rows))


def figure(file: str, quantity: str, axis: str = "") -> str:
    """The points of a figure: a line for every series, a column for every place on the axis.

    With `axis` the columns are what stands behind the last comma of a row's name, and `axis` says what that is.
    """
    shown = shown_table(file)
    points = [row for row in shown.rows if row.row.series]

    def place_of(row: ShownRow) -> str:
        if axis:
            return row.row.name.rpartition(", ")[2]
        return f"{row.row.x:,.12g}" if isinstance(row.row.x, int | float) else str(row.row.x)

    cells = {(row.row.series, place_of(row)): _ours(row, quantity) for row in points}
    places = list(dict.fromkeys(place for _, place in cells))
    series = dict.fromkeys(name for name, _ in cells)
    heading = axis or (shown.table.figure.x if shown.table.figure else "x")
    rows = ([name, *(cells.get((name, place), "") for place in places)] for name in series)
    return markdown_table([f"{QUANTITIES[quantity].heading} by {heading}", *places], rows)


def rates(file: str) -> str:
    """The learning rates that were chosen."""
    shown = shown_table(file)
    rows = (
        [
            row.row.name,
            "not run" if row.row.rate_is_open else f"{rate_of(row.row):g}",
            ", ".join(f"{rate:g}" for rate in row.row.rates),
        ]
        for row in shown.rows
        if row.row.rates
    )
    return markdown_table(["row", "learning rate", "tried"], rows)


def what_was_run(*folders: str) -> str:
    """Every table file: rows, rows with a result, seeds, and what became of its claims."""
    rows = []
    for folder in folders:
        for file in table_files(folder):
            shown = shown_table(file)
            num_run = sum(row.status != "not run" for row in shown.rows)
            seeds = max((len(row.results) for row in shown.rows), default=0)
            outcomes = [verdict.outcome for verdict in shown.verdicts]
            counts = [str(outcomes.count(outcome)) if outcomes else "" for outcome in OUTCOMES]
            rows.append(
                [
                    f"`{file.removeprefix('experiments/').removesuffix('.toml')}`",
                    shown.table.title,
                    f"{len(shown.rows)}",
                    f"{num_run}",
                    f"{seeds}",
                    *counts,
                ]
            )
    totals = [str(sum(int(row[column] or 0) for row in rows)) for column in (2, 3)]
    claims = [str(sum(int(row[column] or 0) for row in rows)) for column in (5, 6, 7)]
    rows.append(["**all**", "", *totals, "", *claims])
    headings = ["file", "title", "rows", "run", "seeds", "supported", "contradicted", "claims not run"]
    return markdown_table(headings, rows, left=2)


def rows_not_run(*folders: str) -> str:
    rows = []
    for folder in folders:
        for file in table_files(folder):
            missing = [row.row.name for row in shown_table(file).rows if row.status == "not run"]
            num_missing = len(missing)
            if len(missing) > 10:
                missing = [*missing[:3], f"and {len(missing) - 3} more"]
            if missing:
                rows.append(
                    [
                        f"`{file.removeprefix('experiments/').removesuffix('.toml')}`",
                        f"{num_missing}",
                        "; ".join(missing),
                    ]
                )
    return markdown_table(["file", "rows", "not run"], rows, left=3)


def _verdicts(folder: str) -> list[tuple[str, Verdict]]:
    return [(Path(file).stem, verdict) for file in table_files(folder) for verdict in shown_table(file).verdicts]


def claims(folder: str, outcome: str) -> str:
    """The claims of a folder's tables with one outcome, with the numbers that decide them."""
    heading = {"supported": "our numbers", "contradicted": "does not hold", "not run": "missing"}[outcome]
    rows = (
        [table, verdict.text, verdict.numbers.removeprefix("needs ")]
        for table, verdict in _verdicts(folder)
        if verdict.outcome == outcome
    )
    return markdown_table(["table", "claim", heading], rows, left=3)


def claim_counts(*folders: str) -> str:
    rows = []
    for folder in folders:
        outcomes = [verdict.outcome for _, verdict in _verdicts(folder)]
        rows.append([f"`{folder}`", *(str(outcomes.count(outcome)) for outcome in OUTCOMES)])
    rows.append(["**all**", *(str(sum(int(row[column]) for row in rows)) for column in (1, 2, 3))])
    return markdown_table(["folder", *OUTCOMES], rows)


def best_models() -> str:
    """Our lowest perplexities beside the paper's VL-HMM."""
    rows = []
    for corpus, ours, paper in (
        ("Penn Treebank", "experiments/ours/best-ptb.toml", "experiments/chiu2020/table1-ptb.toml"),
        ("WikiText-2", "experiments/ours/best-wt2.toml", "experiments/chiu2020/table1-wikitext2.toml"),
    ):
        (best,) = shown_table(ours).rows
        measured = {name: _ours(best, name) for name in ("valid", "test", "train", "parameters", "seconds_per_epoch")}
        rows.append([f"{corpus}, `{Path(ours).stem}`", *measured.values()])
        published = next(row for row in shown_table(paper).rows if row.row.name == "VL-HMM")
        printed = {name: written(name, value) for name, value in published.row.paper.items()}
        rows.append([f"{corpus}, VL-HMM (Chiu & Rush 2020)", *(printed.get(name, "-") for name in measured)])
    return markdown_table(["model", "valid ppl", "test ppl", "train ppl", "parameters", "s an epoch"], rows)


def leads(corpus: str) -> str:
    """Single trainings on the way to the best models, by validation perplexity."""
    runs = [run for run in read_json("experiments/ours/curves/first-leads.json")["runs"] if run["corpus"] == corpus]
    rows = []
    for run in sorted(runs, key=lambda run: run["best_valid"]):
        changes = run["changes"]
        states = int(changes.get("states_per_block", 256))
        rows.append(
            [
                f"{states:,}",
                f"{round(states * (1 - changes.get('state_dropout', 0.5))):,}",
                f"{changes.get('weight_decay', 0.02):g}",
                f"{changes.get('ema', 0.998):g}",
                f"{changes.get('epochs', 24):g}",
                f"{run['best_valid']:.1f}",
                f"{run['best_epoch']:g}",
            ]
        )
    headings = ["states per block", "kept per step", "weight decay", "ema", "epochs", "valid ppl", "best epoch"]
    return markdown_table(headings, rows, left=0)
