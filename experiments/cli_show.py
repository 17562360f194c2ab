"""How `python -m experiments show` prints a table, row by row, beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlhmm.cli.show import line, message, print_table, short, table

if TYPE_CHECKING:
    from experiments.claims import Verdict
    from experiments.show import Shown, ShownRow, ShownTable


def print_shown(shown: ShownTable) -> None:
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
            print_verdict(verdict, verdict.text)


def print_verdict(verdict: Verdict, claim: str) -> None:
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


def draw_figures(shown: ShownTable, base: Path) -> None:
    from experiments.figures import draw_curves, draw_points

    drawn: list[tuple[Path, Any]] = [(base.with_name(f"{base.stem}-curves.png"), draw_curves)]
    if shown.table.figure is not None:
        drawn.insert(0, (base.with_suffix(".png"), draw_points))
    for path, draw in drawn:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(shown, path)
        message(f"drawn: {path}")
