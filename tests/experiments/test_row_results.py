"""Results are found by what decided them, and a file that is not what it seems is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_tables import TABLE, TEXT, made, small_table

from experiments.results import (
    ResultError,
    find_result,
    find_seeds,
    identity_of,
    outdated_results,
    read_result,
    write_result,
)
from experiments.show import show_table


def test_what_is_written_is_read(tmp_path: Path) -> None:
    result = made(small_table(tmp_path))
    path = write_result(tmp_path / "results", result)
    assert read_result(path) == result
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_settings_text_and_seed_make_an_identity_and_names_do_not(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    row = table.row("HMM")
    hash_of_row = identity_of(row, TEXT, 0).hash
    assert identity_of(replace(row, name="another", note="noted", test=True), TEXT, 0).hash == hash_of_row
    assert identity_of(row, TEXT, 1).hash != hash_of_row
    assert identity_of(row, TEXT, 1).configuration == identity_of(row, TEXT, 0).configuration
    assert identity_of(row, {"corpus": "4567"}, 0).hash != hash_of_row
    assert identity_of(replace(row, train_fraction=0.5), TEXT, 0).hash != hash_of_row
    others = table.with_changes(None, {"clip": "1", "order": "2"})
    assert identity_of(others.row("HMM"), TEXT, 0).hash != hash_of_row
    trigrams = identity_of(table.row("trigrams"), TEXT, 0)
    assert identity_of(others.row("trigrams"), TEXT, 0).hash != trigrams.hash
    assert trigrams.hash != hash_of_row


def test_a_setting_that_was_added_later_changes_no_identity(tmp_path: Path) -> None:
    result = made(small_table(tmp_path))
    older = json.loads(json.dumps(result.settings))
    assert older["train"].pop("beta2") == 0.999
    assert replace(result, settings=older).identity.hash == result.identity.hash
    assert older["train"].pop("learning_rate") == 0.02
    assert replace(result, settings=older).identity.hash != result.identity.hash


def test_a_result_is_found_for_another_row_of_another_folder(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    path = write_result(tmp_path / "first", made(table))
    other = small_table(tmp_path, TABLE.replace('name = "HMM"', 'name = "H"').replace('"HMM.valid"', '"H.valid"'))
    found = find_result([tmp_path / "second", tmp_path / "first"], identity_of(other.row("H"), TEXT, 0))
    assert found is not None
    assert found[0] == path
    assert find_result([tmp_path / "first"], identity_of(other.row("no dropout"), TEXT, 0)) is None


def test_a_half_written_foreign_or_edited_result_is_refused(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    path = write_result(tmp_path, made(table))
    whole = path.read_text()
    edited = json.loads(whole)
    edited["settings"]["train"]["epochs"] = 3
    renamed = json.loads(whole)
    renamed["mesured"] = renamed.pop("measured")
    for content, message in (
        (whole[: len(whole) // 2], "half-written"),
        ('{"perplexity": 3}', "no result of"),
        ("[]", "no result of"),
        (whole.replace('"schema": 1', '"schema": 99'), "schema 99"),
        (json.dumps(edited), "was edited"),
        (json.dumps(renamed), "lacks something.*measured"),
    ):
        path.write_text(content)
        with pytest.raises(ResultError, match=message) as error:
            find_result([tmp_path], identity_of(table.row("HMM"), TEXT, 0))
        assert str(path) in str(error.value)
        assert "--force" in str(error.value)
        assert path.read_text() == content


def test_results_of_a_row_that_has_changed_say_what_differs(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    write_result(tmp_path / "results", made(table))
    later = small_table(tmp_path, TABLE.replace("epochs = 2", "epochs = 3"))
    row = later.row("HMM")
    ((_, differences),) = outdated_results(tmp_path / "results", later, row, identity_of(row, TEXT, 0))
    assert differences == ["epochs = 2, not 3"]
    assert outdated_results(tmp_path / "results", table, table.row("HMM"), identity_of(table.row("HMM"), TEXT, 0)) == []


def test_seeds_are_shown_as_mean_and_range(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    for seed, valid in ((0, 4.0), (1, 5.0), (3, 9.0)):
        write_result(tmp_path, made(table, seed=seed, valid=valid))
    assert [result.seed for result in find_seeds([tmp_path], table.row("HMM"), TEXT)] == [0, 1, 3]
    shown = show_table(table, TEXT, [tmp_path])
    cell = shown.rows[0].cells["valid"]
    assert cell.ours is not None
    assert (cell.ours.mean, cell.ours.low, cell.ours.high) == (6.0, 4.0, 9.0)
    assert (cell.paper, cell.difference, cell.percent) == (4.0, 2.0, 50.0)
    assert [row.status for row in shown.rows] == ["finished", "not run", "not run"]
    assert [verdict.outcome for verdict in shown.verdicts] == ["not run"]
    write_result(tmp_path, made(table, row="no dropout", valid=8.0))
    (verdict,) = show_table(table, TEXT, [tmp_path]).verdicts
    assert (verdict.outcome, verdict.numbers) == ("supported", "HMM 6.0 < no dropout 8.0")


def test_a_search_is_shown_best_first_and_what_broke_down_last(tmp_path: Path) -> None:
    table = small_table(
        tmp_path,
        'title = "s"\ncorpus = "tiny"\ncolumns = ["valid"]\n[grid]\npreset = "demo"\n'
        "[grid.settings]\nlearning_rate = [0.1, 0.2, 0.3, 0.4]\n",
    )
    names = [row.name for row in table.rows]
    write_result(tmp_path, made(table, names[0], measured={}, status="diverged"))
    write_result(tmp_path, made(table, names[1], valid=7.0))
    write_result(tmp_path, made(table, names[2], valid=6.0))
    shown = show_table(table, TEXT, [tmp_path])
    assert [row.row.name for row in shown.rows][:2] == [names[2], names[1]]
    assert {row.row.name: row.status for row in shown.rows}[names[0]] == "diverged"
