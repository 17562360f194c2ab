"""Rows with the stages of a teacher: all of them are made, shared by rows, resumed, and counted in what identifies a result."""

from pathlib import Path

import pytest
from small_tables import events_of, row_run, small_corpus, small_table

import vlhmm
from experiments.results import identity_of
from experiments.row_events import RowStopped
from experiments.row_settings import knows
from experiments.rows import RowDone
from experiments.table_file import TableFile
from vlhmm.distillation.stage_records import MIXTURE, SAMPLES, TEACHER
from vlhmm.training.presets import Recipe

TABLE = """
title = "A small table"
corpus = "tiny"
columns = ["valid", "teacher_valid", "mixture_valid", "total_seconds"]
timings = false
test = true
preset = "taught-ptb"

[changes]
num_blocks = 4
states_per_block = 4
dim = 8
batch_size = 4
window = 8
checks_per_epoch = 1
"teacher.kind" = "lstm"
"teacher.dim" = 8
"teacher.epochs" = 1
"teacher.batch_size" = 4
"teacher.window" = 8
"samples.tokens" = 600
"samples.length" = 8
"samples.prefix" = 4
"samples.batch_size" = 25
"samples.real_copies" = 2
"finetune.epochs" = 1
"finetune.batch_size" = 4
"finetune.window" = 8

[[rows]]
name = "taught"

[[rows]]
name = "the same samples, other states"
changes = { states_per_block = 8 }

[[rows]]
name = "warmer samples"
changes = { "samples.temperature" = 1.5 }

[[rows]]
name = "other fine-tuning"
changes = { "finetune.learning_rate" = 0.001 }
"""


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return small_corpus()


@pytest.fixture
def table(tmp_path: Path) -> TableFile:
    return small_table(tmp_path, TABLE)


def test_rows_share_the_stages_on_which_they_agree(table: TableFile, corpus: vlhmm.Corpus) -> None:
    runs = [row_run(table, row.name, corpus) for row in table.rows]
    done = [events_of(run, corpus)[-1] for run in runs]
    for one in done:
        assert isinstance(one, RowDone)
        measured = one.result.measured
        assert {"valid", "test", "teacher_valid", "samples_by_teacher", "mixture_valid"} <= measured.keys()
        assert measured["total_seconds"] == pytest.approx(one.result.seconds, abs=0.1)
    first, second, third, fourth = (run.folder for run in runs)
    assert (first / TEACHER).resolve() == (second / TEACHER).resolve() == (third / TEACHER).resolve()
    assert (first / SAMPLES).resolve() == (second / SAMPLES).resolve() != (third / SAMPLES).resolve()
    mixtures = [(folder / MIXTURE).resolve() for folder in (first, second, third, fourth)]
    assert mixtures[0] == mixtures[3]
    assert len(set(mixtures)) == 3
    assert done[0].result.measured["mixture_valid"] == done[3].result.measured["mixture_valid"]
    assert done[0].result.measured["valid"] != done[3].result.measured["valid"]
    assert len({one.result.measured["teacher_valid"] for one in done if isinstance(one, RowDone)}) == 1
    runs[0].discard()
    assert (second / TEACHER / "stage.json").exists()


def test_a_row_goes_on_from_the_stage_where_it_stopped(table: TableFile, corpus: vlhmm.Corpus) -> None:
    run = row_run(table, "taught", corpus)
    stopped = events_of(run, corpus, max_seconds=0.0)[-1]
    assert isinstance(stopped, RowStopped)
    assert not any((run.folder / MIXTURE).iterdir())
    done = events_of(run, corpus)[-1]
    assert isinstance(done, RowDone)
    assert done.result.status == "finished"


def test_settings_of_stages_decide_the_identity_and_the_seed_is_that_of_all(table: TableFile) -> None:
    text = {"corpus": "0"}
    first, second, third, _ = (identity_of(row, text, 0) for row in table.rows)
    assert len({one.configuration for one in (first, second, third)}) == 3
    other = identity_of(table.rows[0], text, 1)
    assert (other.configuration, other.hash) == (first.configuration, identity_of(table.rows[0], text, 1).hash)
    assert "seed" not in first.settings["finetune"]
    # What is left at its default does not count: a setting that comes later changes no identity.
    settings = {**first.settings, "finetune": {k: v for k, v in first.settings["finetune"].items() if k != "clip"}}
    assert type(first)(first.kind, settings, first.data, 0).configuration == first.configuration
    kind = {**first.settings, "teacher": {**first.settings["teacher"], "kind": "awd-lstm"}}
    assert type(first)(first.kind, kind, first.data, 0).configuration != first.configuration


def test_settings_of_stages_are_changed_as_a_person_types_them(table: TableFile) -> None:
    assert knows(table.rows[0].settings, "samples.tokens")
    assert not knows(table.rows[0].settings, "samples.unheard")
    changed = table.with_changes(None, {"samples.tokens": "900", "finetune.learning_rate": "0.5"})
    for row in changed.rows:
        assert isinstance(row.settings, Recipe)
        assert row.settings.stages is not None
        assert row.settings.stages.samples.tokens == 900
        assert row.settings.stages.finetune.learning_rate == 0.5
