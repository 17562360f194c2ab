"""`python -m experiments run --verify`: stored results against new runs in a scratch folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli_runs import RowRunner
from vlhmm.cli.show import line, message, print_json, print_table, table

if TYPE_CHECKING:
    from experiments.rows import RowRun
    from experiments.table_file import Row, TableFile
    from experiments.verify import Comparison


def verify_rows(
    runner: RowRunner,
    wanted: Sequence[tuple[TableFile, Row]],
    texts: Mapping[str, Mapping[str, str]],
    folders: Mapping[Path, tuple[Path, ...]],
    *,
    seeds: Sequence[int],
    named: bool,
    as_json: bool,
) -> int:
    """Trains rows anew and prints their figures beside the stored ones; the exit status is 1 where one is outside its tolerance.

    `named`: the rows were asked for by name, so that one without a result is an error.
    """
    from experiments.plan import RunPlan
    from experiments.rows import RowRun
    from experiments.verify import Stored, compare, stored_results

    stored: list[Stored] = []
    missing: list[str] = []
    for asked, row in wanted:
        found = stored_results(asked, row, texts[asked.corpus], folders[asked.path], seeds)
        if found is None:
            missing.append(f"{asked.name}/{row.name}")
        else:
            stored.append(found)
    if missing and (named or not stored):
        raise ValueError(
            f"{len(missing)} of {len(wanted)} rows have no result to verify ({', '.join(missing)}): run them without --verify first"
        )
    if missing:
        message(f"{len(missing)} of {len(wanted)} rows have no result to verify")

    runner.runs.mkdir(parents=True, exist_ok=True)
    # On the disk of other training runs: the default one may be small.
    with tempfile.TemporaryDirectory(prefix="verify-", dir=runner.runs) as name:
        scratch = Path(name)

        def planned(asked: TableFile, row: Row, seed: int) -> RowRun:
            return RowRun(asked, row, seed, texts[asked.corpus], (scratch / "results",), scratch, "--verify")

        status = runner(RunPlan([(one.table, one.row) for one in stored], planned))
    new = [done.result for done in runner.done]
    compared = [comparison for one in stored for comparison in compare(one, new)]
    if as_json:
        print_json([comparison.to_dict() for comparison in compared])
    else:
        _print(compared)
    if runner.failed:
        raise runner.failed[0]
    if status is not None:
        return status
    num_outside = sum(not comparison.within for comparison in compared)
    message(f"{num_outside} of {len(compared)} figures are outside the tolerance")
    return 1 if num_outside else 0


def _print(compared: Sequence[Comparison]) -> None:
    from experiments.quantities import QUANTITIES, written

    numbers = ("stored", "new", "difference", "tolerance")
    shown = table("row", "seed", "figure", *numbers, "within tolerance", right=numbers)
    for one in compared:
        figures = [
            "diverged" if value is None else written(one.quantity, value, digits=2) for value in (one.stored, one.new)
        ]
        difference = "" if one.difference is None else f"{one.difference:+,.2f}"
        shown.add_row(
            f"{one.table}/{one.row}",
            str(one.seed),
            QUANTITIES[one.quantity].heading,
            *figures,
            difference,
            f"{one.tolerance:,.2f}",
            "yes" if one.within else "NO",
        )
    print_table(shown)
    for old, new in dict.fromkeys((one.stored_device, one.new_device) for one in compared):
        if old != new:
            line(f"stored results of {old}; new ones of {new}", style="dim")
