"""What is run, and when: a row once its rate is chosen, whatever other rows wait for; every run once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from small_tables import TEXT, made, small_table

from experiments.plan import RunPlan
from experiments.results import write_result
from experiments.rows import RowRun
from experiments.table_file import Row, TableFile

TABLE = """
title = "Two rates"
corpus = "tiny"
columns = ["valid"]
preset = "lee2025-scalar"
timings = false
seeds = [1, 2]
rate_tokens = 500

[[rows]]
name = "first"
rates = [0.1, 0.2, 0.4]

[[rows]]
name = "second"
changes = { states_per_block = 8 }
rates = [0.3, 0.6, 1.2]

[[rows]]
name = "as first"
changes = { states_per_block = 16 }
rate_of = "first"

[[rows]]
name = "fixed"
changes = { learning_rate = 0.3, states_per_block = 4 }
"""


def plan_of(tables: Sequence[TableFile], folder: Path, seeds: Sequence[int] = (), force: bool = False) -> RunPlan:
    def run_of(table: TableFile, row: Row, seed: int) -> RowRun:
        return RowRun(table, row, seed, TEXT, (folder / "results",), folder / "runs", "")

    return RunPlan([(table, row) for table in tables for row in table.rows], run_of, seeds=seeds, force=force)


def finish(run: RowRun, valid: float = 5.0) -> None:
    table = replace(run.table, rows=(run.row,))
    write_result(run.results[0], made(table, run.row.name, seed=run.seed, valid=valid))


def labels(runs: Sequence[RowRun]) -> list[str]:
    return [run.label for run in runs]


def test_a_row_follows_its_trials_and_waits_for_no_others(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    plan = plan_of([small_table(tmp_path, TABLE)], tmp_path)
    tried = [f"first, rate {rate}" for rate in (0.1, 0.2, 0.4)] + [f"second, rate {rate}" for rate in (0.3, 0.6, 1.2)]
    assert labels(plan.first) == [*tried, "fixed, seed 1", "fixed, seed 2"]
    for run, valid in zip(plan.first[:2], (9.0, 7.0), strict=True):
        finish(run, valid)
        assert plan.after(run) == []
    finish(plan.first[2], 8.0)
    due = plan.after(plan.first[2])
    assert labels(due) == ["first, seed 1", "first, seed 2", "as first, seed 1", "as first, seed 2"]
    assert {run.identity.settings["train"]["learning_rate"] for run in due} == {0.2}
    assert [row.name for row in plan.unsettled()] == ["second"]
    assert plan.after(plan.first[2]) == []
    assert plan.after(plan.first[-1]) == []


def test_a_best_rate_at_the_end_asks_for_another_trial(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    plan = plan_of([small_table(tmp_path, TABLE)], tmp_path)
    for run, valid in zip(plan.first[3:6], (9.0, 8.0, 7.0), strict=True):
        finish(run, valid)
    (further,) = plan.after(plan.first[5])
    assert further.label == "second, rate 2.4"
    finish(further, 7.5)
    assert labels(plan.after(further)) == ["second, seed 1", "second, seed 2"]


def test_what_tables_share_is_given_once_and_what_has_a_result_never(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    tables = [small_table(tmp_path, TABLE, name) for name in ("one.toml", "other.toml")]
    plan = plan_of(tables, tmp_path, seeds=[7])
    assert len(plan.first) == 7
    for run in plan.first:
        finish(run, 5.0 if run.label.endswith(("0.2", "0.6")) else 6.0)
    assert len(plan.after(plan.first[0])) == 2
    again = plan_of(tables, tmp_path, seeds=[7])
    assert labels(again.first) == ["first, seed 7", "second, seed 7", "as first, seed 7"]
    assert again.num_found == 1
    forced = plan_of(tables, tmp_path, seeds=[7], force=True)
    assert len(forced.first) == 4
    assert not any(run.row.passing for run in forced.first)


def test_a_trial_without_a_result_leaves_its_row_open(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    plan = plan_of([small_table(tmp_path, TABLE)], tmp_path)
    for run in plan.first[1:6]:
        finish(run, 5.0 if run.label.endswith("0.6") else 6.0)
        plan.after(run)
    assert plan.after(plan.first[0]) == []
    assert [row.name for row in plan.unsettled()] == ["first", "as first"]
