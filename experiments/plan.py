"""What is to be run of some tables, and in which order: trials of learning rates first, and a row as soon as its rate is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.rates import trials, with_chosen_rate
from experiments.rows import RowRun
from experiments.table_file import Row, TableFile


class RunPlan:
    """Runs of rows, each given once, though several tables may have it, and only if it has no result yet."""

    def __init__(
        self,
        wanted: Sequence[tuple[TableFile, Row]],
        run_of: Callable[[TableFile, Row, int], RowRun],
        *,
        seeds: Sequence[int] = (),
        force: bool = False,
    ) -> None:
        """`run_of`: a row and a seed as something to run; `seeds`: instead of the rows' own; `force`: rows that have a result are
        run again, their trials are not."""
        self._wanted, self._run_of, self._seeds, self._force = wanted, run_of, seeds, force
        self._seen: set[Path] = set()
        self._waiting: dict[Path, set[int]] = {}
        """Of a trial: the rows, by their place, that its result may settle."""
        self.num_found = 0
        """Runs that had their results already."""
        self.first = [run for place in range(len(wanted)) for run in self._due(place)]

    def after(self, run: RowRun) -> list[RowRun]:
        """What can be run now that this one has ended."""
        return [due for place in sorted(self._waiting.get(run.folder, ())) for due in self._due(place)]

    def unsettled(self) -> list[Row]:
        """Rows whose learning rate is still open."""
        settled = (self._settled(place) for place in range(len(self._wanted)))
        return [row for row in settled if row.rate_is_open]

    def _settled(self, place: int) -> Row:
        table, row = self._wanted[place]
        run = self._run_of(table, row, 0)
        return with_chosen_rate(table, row, run.text, run.results)

    def _due(self, place: int) -> list[RowRun]:
        """Of one row that is wanted: itself, or trials while its rate is open; what was given before is left out."""
        table, asked = self._wanted[place]
        row = self._settled(place)
        if row.rate_is_open:
            run = self._run_of(table, asked, 0)
            tried = trials(table, asked, run.text, run.results)
            runs = [self._run_of(table, trial, trial.seeds[0]) for trial in tried]
            for run in runs:
                self._waiting.setdefault(run.folder, set()).add(place)
        else:
            runs = [self._run_of(table, row, seed) for seed in self._seeds or row.seeds]
        return [run for run in runs if self._is_due(run)]

    def _is_due(self, run: RowRun) -> bool:
        if run.folder in self._seen:
            return False
        self._seen.add(run.folder)
        if run.found() and not (self._force and not run.row.passing):
            self.num_found += 1
            return False
        return True
