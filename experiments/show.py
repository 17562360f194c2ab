"""A table with its results: the paper's number, ours, and the difference, for every row and column."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.claims import Cell, Verdict, judge
from experiments.quantities import SPREAD
from experiments.rates import rate_of, with_chosen_rate
from experiments.results import Result, find_seeds
from experiments.table_file import Row, TableFile


@dataclass(frozen=True)
class Ours:
    """Over all seeds that were run."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Shown:
    """One cell of the table."""

    paper: float | None
    ours: Ours | None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper

    @property
    def percent(self) -> float | None:
        difference = self.difference
        return None if difference is None or not self.paper else 100 * difference / self.paper


@dataclass(frozen=True)
class ShownRow:
    row: Row
    results: tuple[Result, ...]
    cells: dict[str, Shown]

    @property
    def status(self) -> str:
        """finished, diverged or not run."""
        if self.row.rate_is_open or not self.results:
            return "not run"
        return "finished" if any(result.status == "finished" for result in self.results) else "diverged"


@dataclass(frozen=True)
class ShownTable:
    table: TableFile
    rows: tuple[ShownRow, ...]
    verdicts: tuple[Verdict, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table.name,
            "title": self.table.title,
            "source": self.table.source,
            "corpus": self.table.corpus,
            "rows": [
                {
                    "name": shown.row.name,
                    "status": shown.status,
                    "seeds": [result.seed for result in shown.results],
                    "learning_rate": None if shown.row.rate_is_open else rate_of(shown.row),
                    "rates": list(shown.row.rates),
                    "note": shown.row.note,
                    "quantities": {
                        name: {
                            "paper": cell.paper,
                            "ours": None if cell.ours is None else asdict(cell.ours),
                            "difference": cell.difference,
                            "percent": cell.percent,
                        }
                        for name, cell in shown.cells.items()
                    },
                }
                for shown in self.rows
            ],
            "claims": [asdict(verdict) for verdict in self.verdicts],
        }


def show_table(table: TableFile, text: Mapping[str, str], results: Sequence[Path]) -> ShownTable:
    """`text`: the checksums of the table's corpus."""
    table = replace(table, rows=tuple(with_chosen_rate(table, row, text, results) for row in table.rows))
    rows = [_show_row(table, row, text, results) for row in table.rows]
    by_name = {shown.row.name: shown for shown in rows}

    def value_of(cell: Cell) -> float | None:
        ours = _ours(by_name[cell.row].results, cell.quantity)
        return None if ours is None else ours.mean

    if table.best_first:
        # Rows that were not run, or broke down, stand last.
        rows.sort(key=lambda shown: ours.mean if (ours := _ours(shown.results, "valid")) else float("inf"))
    return ShownTable(table, tuple(rows), tuple(judge(claim, value_of) for claim in table.claims))


def claims_of_the_paper(table: TableFile) -> list[Verdict]:
    """The claims held against the paper's own numbers."""
    return [judge(claim, lambda cell: table.row(cell.row).paper.get(cell.quantity)) for claim in table.claims]


def _show_row(table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path]) -> ShownRow:
    results = () if row.rate_is_open else tuple(find_seeds(folders, row, text))
    cells = {name: Shown(row.paper.get(name), _ours(results, name)) for name in table.columns}
    return ShownRow(row, results, cells)


def _ours(results: tuple[Result, ...], quantity: str) -> Ours | None:
    if quantity == SPREAD:
        tests = [result.measured["test"] for result in results if "test" in result.measured]
        spread = max(tests) - min(tests) if len(tests) > 1 else None
        return None if spread is None else Ours(spread, spread, spread)
    values = [result.measured[quantity] for result in results if quantity in result.measured]
    return Ours(statistics.fmean(values), min(values), max(values)) if values else None
