"""Learning rates: tried briefly, the best on validation taken, by the row itself and by those that name it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from small_tables import TEXT, made, small_table

from experiments.rates import rate_of, trials, with_chosen_rate
from experiments.results import write_result
from experiments.show import show_table
from experiments.table_file import Row, TableFile

TABLE = """
title = "A small table"
corpus = "tiny"
columns = ["valid", "test", "test_spread"]
preset = "lee2025-scalar"
seeds = [1, 2]
rate_tokens = 500

[[rows]]
name = "HMM"
rates = [0.1, 0.2, 0.4]

[[rows]]
name = "as HMM"
changes = { states_per_block = 8 }
rate_of = "HMM"

[[rows]]
name = "fixed"
changes = { learning_rate = 0.3 }

[[claims]]
text = "eight states are enough"
less = ["as HMM.test_spread", "HMM.test_spread"]
"""


def write_trials(table: TableFile, folder: Path, perplexities: Mapping[float, float]) -> list[float]:
    """Results of all trials that are asked for, those not given diverged; their rates, in the order of asking."""
    order: list[float] = []
    while left := [trial for trial in asked_for(table, table.rows[0], folder) if rate_of(trial) not in order]:
        for trial in left:
            rate = rate_of(trial)
            assert rate is not None
            order.append(rate)
            broken = {} if rate in perplexities else {"measured": {}, "status": "diverged"}
            valid = perplexities.get(rate, 0.0)
            write_result(folder, made(with_rows(table, folder), trial.name, seed=1, valid=valid, **broken))
    return order


def asked_for(table: TableFile, row: Row, folder: Path) -> list[Row]:
    return trials(table, row, TEXT, [folder])


def with_chosen_rates(table: TableFile, folder: Path) -> TableFile:
    return replace(table, rows=tuple(with_chosen_rate(table, row, TEXT, [folder]) for row in table.rows))


def with_rows(table: TableFile, folder: Path) -> TableFile:
    """The trials among its rows."""
    return replace(table, rows=(*table.rows, *asked_for(table, table.rows[0], folder)))


def test_trials_are_short_of_one_seed_and_never_see_the_test_text(tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE)
    tried = asked_for(table, table.row("as HMM"), tmp_path)
    assert [rate_of(trial) for trial in tried] == [0.1, 0.2, 0.4]
    for trial in tried:
        assert (trial.tokens, trial.seeds, trial.test, trial.rates) == (500, (1,), False, ())
    assert asked_for(table, table.row("fixed"), tmp_path) == []


@pytest.mark.parametrize(
    ("perplexities", "beyond", "chosen"),
    [
        ({0.1: 9.0, 0.2: 7.0, 0.4: 8.0}, [], 0.2),
        ({0.1: 9.0, 0.4: 8.0}, [0.8], 0.4),
        ({0.1: 9.0, 0.2: 8.0, 0.4: 7.0, 0.8: 6.0, 1.6: 6.5}, [0.8, 1.6], 0.8),
        ({0.1: 5.0, 0.2: 4.0, 0.4: 3.0, 0.8: 2.0, 1.6: 1.5, 3.2: 1.0}, [0.8, 1.6, 3.2], 3.2),
        ({0.1: 7.0, 0.2: 7.0, 0.4: 8.0, 0.05: 7.0, 0.025: 7.5}, [0.05, 0.025], 0.05),
        ({}, [0.05, 0.025, 0.013], 0.013),
    ],
)
def test_the_best_rate_is_taken_and_the_next_one_tried_if_it_is_the_last(
    tmp_path: Path, perplexities: dict[float, float], beyond: list[float], chosen: float
) -> None:
    table = small_table(tmp_path, TABLE)
    assert write_trials(table, tmp_path, perplexities) == [0.1, 0.2, 0.4, *beyond]
    settled = with_chosen_rates(table, tmp_path)
    assert [rate_of(row) for row in settled.rows] == [chosen, chosen, 0.3]
    assert not any(row.rate_is_open for row in settled.rows)
    assert settled.rows[0].rates == tuple(sorted([0.1, 0.2, 0.4, *beyond]))


def test_without_all_trials_a_rate_is_open_and_the_row_not_run(tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE)
    (first, *_) = asked_for(table, table.rows[0], tmp_path)
    write_result(tmp_path, made(with_rows(table, tmp_path), first.name, seed=1))
    # A result of the rate that the preset happens to have is no answer.
    write_result(tmp_path, made(table, "HMM"))
    shown = show_table(table, TEXT, [tmp_path])
    assert [row.status for row in shown.rows] == ["not run", "not run", "not run"]
    assert [row["learning_rate"] for row in shown.to_dict()["rows"]] == [None, None, 0.3]


def test_the_spread_of_seeds_can_be_claimed(tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE)
    write_trials(table, tmp_path, {0.1: 9.0, 0.2: 7.0, 0.4: 8.0})
    settled = with_chosen_rates(table, tmp_path)
    write_result(tmp_path, made(settled, "HMM", seed=1, measured={"test": 10.0}))
    assert show_table(table, TEXT, [tmp_path]).verdicts[0].outcome == "not run"
    for name, seed, test in (("HMM", 2, 14.0), ("as HMM", 1, 9.0), ("as HMM", 2, 10.0)):
        write_result(tmp_path, made(settled, name, seed=seed, measured={"test": test}))
    shown = show_table(table, TEXT, [tmp_path])
    assert (shown.verdicts[0].outcome, shown.verdicts[0].numbers) == ("supported", "as HMM 1.0 < HMM 4.0")
    assert [row.status for row in shown.rows] == ["finished", "finished", "not run"]


def test_on_another_text_or_at_a_given_rate_none_are_tried(tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE)
    for changed in (table.with_changes("other", {}), table.with_changes(None, {"learning_rate": "0.7"})):
        assert not any(asked_for(changed, row, tmp_path) for row in changed.rows)
        assert not any(row.rates or row.rate_of for row in changed.rows)
    part = table.with_changes(None, {}, tokens=300)
    assert {row.tokens for row in part.rows} == {300}
    assert {trial.tokens for trial in asked_for(part, part.rows[0], tmp_path)} == {300}
