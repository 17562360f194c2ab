"""Table files: what they say is checked before anything runs, and those that are shipped are sound."""

from pathlib import Path

import pytest
from small_tables import TABLE, small_table, write_table

import vlhmm
from experiments.row_settings import KneserNeySettings
from experiments.show import claims_of_the_paper
from experiments.table_file import read_table
from vlhmm.training.presets import Recipe

SHIPPED = sorted((Path(vlhmm.__file__).parents[1] / "experiments").rglob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_no_shipped_claim_is_contradicted_by_the_papers_own_numbers(path: Path) -> None:
    table = read_table(path)
    assert [verdict for verdict in claims_of_the_paper(table) if verdict.outcome == "contradicted"] == []


def test_the_tables_of_the_paper_are_there() -> None:
    names = {path.stem for path in SHIPPED}
    assert {"table1-ptb", "table1-wikitext2", "table2", "table3", "table4", "figure3", "figure4", "search"} <= names


def test_rows_are_presets_with_changes_or_baselines(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    hmm, without, trigrams = (row.settings for row in table.rows)
    assert isinstance(hmm, Recipe)
    assert isinstance(without, Recipe)
    assert (hmm.train.state_dropout, without.train.state_dropout) == (0.5, 0.0)
    assert hmm.model.dim == without.model.dim == 8
    assert trigrams == KneserNeySettings(order=3, fallback=True)
    assert [row.test for row in table.rows] == [False, False, True]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("title =", "titel =", "unknown key 'titel'; did you mean 'title'"),
        ('corpus = "tiny"', "", "needs one of type str"),
        ('"parameters", "train"', '"parametres", "train"', "did you mean 'parameters'"),
        ("changes = { state_dropout", "changes = { state_droput", "row 'no dropout'.*did you mean 'state_dropout'"),
        ("state_dropout = 0.0", "state_dropout = 1.5", "row 'no dropout'.*state_dropout is 1.5"),
        ("state_dropout = 0.0", "seed = 3", "--seed"),
        ('"kneser-ney"', '"kneser-nay"', "did you mean 'kneser-ney'"),
        ('"chiu2020-ptb"', '"chiu2020-ptp"', "did you mean 'chiu2020-ptb'"),
        ("order = 3", "ordre = 3", "did you mean 'order'"),
        ('name = "no dropout"', 'name = "HMM"', "two rows are called 'HMM'"),
        ("paper = { test = 3.0 }", "paper = { tset = 3.0 }", "did you mean 'test'"),
        ("test = true", "test = 1", "must be true or false"),
        ("seconds = 1\n", "seconds = -1\n", "at least 0"),
        ("seconds = 1\n", "train_fraction = 1.5\n", "at most 1"),
        ('"HMM.valid", "no', '"HMN.valid", "no', "did you mean 'HMM'"),
        ('y = "valid"', 'y = "cached_ms"', "no column"),
        ("[[claims]]", "[claims]", r"written as \[\[claims\]\]"),
        ("title =", "title", "not TOML"),
        ('title = "A small table"', "title = 3", "needs one of type str"),
        ('source = "nobody"', "source = 3", "source is 3, but must be text"),
        ("paper = { test = 3.0 }", 'paper = { test = "3" }', "row 'trigrams': paper is .* must give numbers"),
        ("seconds = 1\n", "x = true\n", "x is True, but must be a number or a name"),
        ("seconds = 1\n", "rates = [0.1]\n", "row 'trigrams' tries learning rates, but is no HMM"),
        ("seconds = 1\n", 'preset = "default"\n', "has a preset and a baseline"),
        ('preset = "chiu2020-ptb"', "", "neither preset nor baseline"),
        ("changes = { state_dropout = 0.0 }", "changes = 3", "row 'no dropout': changes must give settings"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in TABLE
    with pytest.raises(ValueError, match=message) as error:
        small_table(tmp_path, TABLE.replace(before, after))
    assert str(tmp_path / "small.toml") in str(error.value)


GRID = """
title = "A search"
corpus = "tiny"
columns = ["valid"]
[grid]
preset = "default"
draw = 3
seed = 1
[grid.settings]
learning_rate = [0.1, 0.01]
target_network = [true, false]
"""


def test_a_grid_draws_the_same_rows_every_time(tmp_path: Path) -> None:
    table, again = small_table(tmp_path, GRID), small_table(tmp_path, GRID)
    names = [row.name for row in table.rows]
    assert len(set(names)) == 3
    assert names == [row.name for row in again.rows]
    every = small_table(tmp_path, GRID.replace("draw = 3\n", ""))
    assert set(names) < {row.name for row in every.rows}
    assert len(every.rows) == 4
    for row in every.rows:
        assert isinstance(row.settings, Recipe)
        assert f"target_network {str(row.settings.model.target_network).lower()}" in row.name
    for before, after, message in (
        ("draw = 3", "draw = 5", "draw is 5, but must be from 1 to the 4 combinations"),
        ("[0.1, 0.01]", "[]", r"learning_rate is \[\], but must list at least 1 value"),
        ("[0.1, 0.01]", "0.1", "learning_rate is 0.1, but must list"),
    ):
        with pytest.raises(ValueError, match=message):
            small_table(tmp_path, GRID.replace(before, after))


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 rows, at least 1 is needed"):
        small_table(tmp_path, GRID.partition("[grid]")[0])


def test_combinations_that_make_no_model_are_left_out_if_asked(tmp_path: Path) -> None:
    unsound = GRID.replace("draw = 3\n", "").replace("[0.1, 0.01]", "[0.1, -1.0]")
    with pytest.raises(ValueError, match="learning_rate is -1"):
        small_table(tmp_path, unsound)
    sound = small_table(tmp_path, unsound.replace("seed = 1\n", "sound = true\n"))
    assert len(sound.rows) == 2


def test_changes_reach_every_row_that_has_the_setting(tmp_path: Path) -> None:
    table = small_table(tmp_path).with_changes("other", {"epochs": "7", "order": "4"})
    assert table.corpus == "other"
    assert [row.settings.train.epochs for row in table.rows if isinstance(row.settings, Recipe)] == [7, 7]
    assert table.row("trigrams").settings == KneserNeySettings(order=4, fallback=True)
    # The paper did not measure this.
    assert all(not row.paper for row in table.rows)
    with pytest.raises(ValueError, match="has a setting 'epoch'"):
        small_table(tmp_path).with_changes(None, {"epoch": "7"})


def test_an_unknown_row_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'trigrams'"):
        read_table(write_table(tmp_path)).row("trigram")
