"""Figures of a stored result are held against those of a new run: 1 % or the spread of the seeds, whichever is larger."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from small_tables import TEXT, made, small_table

from experiments.results import Result, write_result
from experiments.table_file import TableFile
from experiments.verify import Comparison, Stored, compare, stored_results


def stored(table: TableFile, *results: Result, seeds: tuple[int, ...] = ()) -> Stored:
    folder = table.path.parent / "results"
    for result in results:
        write_result(folder, result)
    found = stored_results(table, table.row("HMM"), TEXT, [folder], seeds)
    assert found is not None
    return found


def by_quantity(compared: list[Comparison]) -> dict[str, Comparison]:
    return {one.quantity: one for one in compared}


@pytest.mark.parametrize(("new", "within"), [(101.0, True), (99.0, True), (101.1, False), (98.9, False)])
def test_one_percent_of_a_single_seed_is_the_tolerance(tmp_path: Path, new: float, within: bool) -> None:
    table = small_table(tmp_path)
    (one,) = compare(stored(table, made(table, valid=100.0)), [made(table, valid=new)])
    assert (one.stored, one.new, one.tolerance, one.within) == (100.0, new, 1.0, within)
    assert one.difference == new - 100.0


def test_seeds_that_are_further_apart_widen_the_tolerance(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    others = [made(table, seed=1, valid=104.0), made(table, seed=7, valid=97.0)]
    found = stored(table, made(table, valid=100.0), *others, seeds=(0,))
    assert [result.seed for result in found.results] == [0]
    (near,) = compare(found, [made(table, valid=107.0)])
    (far,) = compare(found, [made(table, valid=107.5)])
    assert (near.tolerance, near.within, far.within) == (7.0, True, False)


def test_every_stored_perplexity_is_compared_and_parameters_exactly(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    figures = {"valid": 10.0, "train": 8.0, "test": 9.0, "parameters": 1000.0, "seconds_per_epoch": 3.0}
    found = stored(table, made(table, measured=figures))
    assert found.row.test
    assert not found.row.timings
    new = {**figures, "train": 8.2, "parameters": 1001.0, "seconds_per_epoch": 90.0, "running_train": 7.0}
    compared = by_quantity(compare(found, [made(table, measured=new)]))
    assert {name: one.within for name, one in compared.items()} == {
        "valid": True,
        "test": True,
        "train": False,
        "parameters": False,
    }
    del new["test"]
    missing = by_quantity(compare(found, [made(table, measured=new)]))["test"]
    assert (missing.new, missing.difference, missing.within) == (None, None, False)


def test_a_training_that_diverged_is_only_like_another_that_did(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    sound, diverged = made(table), made(table, measured={}, status="diverged")
    (one,) = compare(stored(table, sound), [diverged])
    assert not one.within
    (one,) = compare(stored(table, diverged), [sound])
    assert not one.within
    (one,) = compare(stored(table, diverged), [diverged])
    assert one.within
    assert one.to_dict()["difference"] is None


def test_a_perplexity_that_is_no_number_is_outside(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    (one,) = compare(stored(table, made(table)), [made(table, valid=math.nan)])
    assert not one.within


def test_a_row_without_a_result_of_these_settings_and_seeds_has_nothing_to_verify(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    write_result(tmp_path / "results", made(table))
    assert stored_results(table, table.row("no dropout"), TEXT, [tmp_path / "results"]) is None
    assert stored_results(table, table.row("HMM"), TEXT, [tmp_path / "results"], [1]) is None
    assert stored_results(table, replace(table.row("HMM"), train_fraction=0.5), TEXT, [tmp_path / "results"]) is None
