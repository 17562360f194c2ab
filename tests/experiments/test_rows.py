"""Running a row: once, as far as asked, from where it stopped, and exactly what the library gives."""

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tables import TABLE, events_of, row_run, small_corpus, small_table

import vlhmm
from experiments import side_by_side
from experiments.measure import CURVE_POINTS, running_train, seconds_per_epoch, thinned_curve
from experiments.results import ResultError, read_result
from experiments.row_events import RowStopped
from experiments.rows import RowDone, RowEvent, RowRun, run_row
from experiments.side_by_side import TrainingEnded, train_side_by_side
from experiments.texts import training_text
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.ops.recursion import tilings
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import STATE, read_log
from vlhmm.training.trainer import StepEvent


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return small_corpus()


@pytest.fixture(scope="module")
def finished(corpus: vlhmm.Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the row HMM has been run."""
    folder = tmp_path_factory.mktemp("finished")
    events_of(row_run(small_table(folder), "HMM", corpus), corpus)
    return folder


def result_of(folder: Path) -> dict[str, object]:
    (path,) = (folder / "results").glob("*.json")
    return dict(json.loads(path.read_text()))


def test_a_result_says_what_was_measured_and_how(corpus: vlhmm.Corpus, finished: Path) -> None:
    run = row_run(small_table(finished), "HMM", corpus)
    found = run.found()
    assert found is not None
    result = found[1]
    lm = vlhmm.load(run.folder)
    exact = evaluate(HMMScorer(lm.hmm.tables), corpus.valid)
    assert result.measured["valid"] == pytest.approx(exact.perplexity, rel=1e-9)
    assert "one exact stream" in result.protocols["valid"]
    assert result.measured["parameters"] == lm.model.num_parameters
    expected = {"running_train", "train", "training_ms", "regenerating_ms", "cached_ms"}
    assert expected <= result.measured.keys()
    assert result.status == "finished"
    assert result.settings["train"]["epochs"] == 2
    assert result.corpus_hash == corpus.hash
    assert result.command == "vlhmm table run HMM"
    checks = [record for record in read_log(run.folder) if record["kind"] == "check"]
    assert [point["tokens"] for point in result.curve] == [check["tokens"] for check in checks]


def test_the_test_text_is_scored_only_where_asked(corpus: vlhmm.Corpus, finished: Path, tmp_path: Path) -> None:
    assert "test" not in result_of(finished)["measured"]  # type: ignore[operator]
    (last,) = events_of(row_run(small_table(tmp_path), "trigrams", corpus), corpus)[-1:]
    assert isinstance(last, RowDone)
    assert last.result.measured["test"] > 1


def test_a_row_with_a_result_is_not_run_again_under_any_name(corpus: vlhmm.Corpus, finished: Path) -> None:
    renamed = TABLE.replace('name = "HMM"', 'name = "the same"').replace('"HMM.valid"', '"the same.valid"')
    events = events_of(row_run(small_table(finished, renamed, "other.toml"), "the same", corpus), corpus)
    (only,) = events
    assert isinstance(only, RowDone)
    assert not only.fresh
    assert only.result.row == "HMM"


def test_what_is_asked_for_later_is_measured_without_training_again(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    events_of(row_run(small_table(tmp_path), "HMM", corpus), corpus)
    before = result_of(tmp_path)["measured"]
    # In another table too; there is one result all the same.
    asking = small_table(tmp_path, TABLE.replace("seconds = 2\n", "seconds = 2\ntest = true\n"), "asking.toml")
    events = events_of(row_run(asking, "HMM", corpus), corpus)
    assert not any(isinstance(event, StepEvent) for event in events)
    after = result_of(tmp_path)["measured"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["test"] > 1
    assert [after[name] for name in ("valid", "train", "parameters")] == [
        before[name] for name in ("valid", "train", "parameters")
    ]


@pytest.mark.parametrize("name", ["HMM", "network"])
def test_a_row_that_ran_out_of_time_goes_on_to_the_same_result(corpus: vlhmm.Corpus, tmp_path: Path, name: str) -> None:
    network = (
        '\n[[rows]]\nname = "network"\nbaseline = "feedforward"\n'
        "changes = { dim = 8, epochs = 2, batch_size = 4, window = 16, checks_per_epoch = 2 }\n"
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    events_of(row_run(small_table(whole, TABLE + network), name, corpus), corpus)
    run = row_run(small_table(parts, TABLE + network), name, corpus)
    stopped = events_of(run, corpus, max_seconds=0.0)[-1]
    assert isinstance(stopped, RowStopped)
    assert 0 < stopped.step < stopped.num_steps
    assert not (parts / "results").exists()
    last = events_of(run, corpus)[-1]
    assert isinstance(last, RowDone)
    expected = result_of(whole)["measured"]
    assert isinstance(expected, dict)
    assert last.result.measured["valid"] == expected["valid"]
    assert last.result.curve == result_of(whole)["curve"]


def test_force_runs_a_row_again_even_over_a_broken_result(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    run = row_run(small_table(tmp_path), "trigrams", corpus)
    first = events_of(run, corpus)[-1]
    assert isinstance(first, RowDone)
    first.path.write_text("{")
    with pytest.raises(ResultError, match="half-written"):
        events_of(run, corpus)
    again = events_of(run, corpus, force=True)[-1]
    assert isinstance(again, RowDone)
    assert again.fresh
    assert read_result(again.path).measured == first.result.measured


def test_force_leaves_a_trial_its_result(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    run = row_run(small_table(tmp_path), "HMM", corpus)
    trial = replace(run, row=replace(run.row, passing=True, timings=False))
    events_of(trial, corpus)
    again = events_of(trial, corpus, force=True)
    assert not any(isinstance(event, StepEvent) for event in again)
    assert isinstance(again[-1], RowDone)
    assert not again[-1].fresh


def test_a_row_whose_settings_have_changed_needs_force_and_keeps_the_old_result(
    corpus: vlhmm.Corpus, tmp_path: Path
) -> None:
    events_of(row_run(small_table(tmp_path), "trigrams", corpus), corpus)
    changed = row_run(small_table(tmp_path, TABLE.replace("order = 3", "order = 2")), "trigrams", corpus)
    with pytest.raises(ResultError, match=r"other settings \(order = 3, not 2\)"):
        events_of(changed, corpus)
    events_of(changed, corpus, force=True)
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_a_diverged_row_is_a_result_too(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    text = TABLE.replace("learning_rate = 0.02 }", "learning_rate = 1e30, clip = 0.0 }")
    run = row_run(small_table(tmp_path, text), "HMM", corpus)
    last = events_of(run, corpus)[-1]
    assert isinstance(last, RowDone)
    assert last.result.status == "diverged"
    assert "learning_rate" in last.result.message
    # A result is for everybody, and the folder on this machine alone.
    assert str(tmp_path) not in last.result.message
    assert last.result.measured == {}
    assert not any(isinstance(event, StepEvent) for event in events_of(run, corpus))


def test_seeds_give_different_results(corpus: vlhmm.Corpus, finished: Path, tmp_path: Path) -> None:
    last = events_of(row_run(small_table(tmp_path), "HMM", corpus, seed=1), corpus)[-1]
    assert isinstance(last, RowDone)
    measured = result_of(finished)["measured"]
    assert isinstance(measured, dict)
    assert last.result.measured["valid"] != measured["valid"]
    assert last.result.seed == 1


def test_rows_share_their_blocks_of_words(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    for name in ("HMM", "no dropout"):
        # The first step is enough: blocks come before it.
        next(e for e in run_row(row_run(table, name, corpus), corpus, torch.device("cpu")) if isinstance(e, StepEvent))
    assert len(list((tmp_path / "runs" / "blocks").glob("*.tsv"))) == 1


def test_a_part_of_the_text_is_its_first_documents(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    row = small_table(tmp_path).row("HMM")
    part = training_text(corpus, replace(row, train_fraction=0.25))
    assert len(part.train) >= 0.25 * len(corpus.train)
    assert part.train.offsets[-2] < 0.25 * len(corpus.train)
    assert part.train.ids.tolist() == corpus.train.ids[: len(part.train)].tolist()
    assert part.tokenizer.vocab_size == corpus.tokenizer.vocab_size
    assert part.hash != corpus.hash
    assert training_text(corpus, row) is corpus


def test_a_number_of_tokens_is_exactly_the_first_ones(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    row = small_table(tmp_path).row("HMM")
    part = training_text(corpus, replace(row, tokens=101)).train
    assert part.ids.tolist() == corpus.train.ids[:101].tolist()
    assert part.offsets.tolist() == [offset for offset in corpus.train.offsets.tolist() if offset < 101] + [101]
    with pytest.raises(ValueError, match="wants 1,000,000 tokens"):
        training_text(corpus, replace(row, tokens=1_000_000))


def test_timing_leaves_the_model_as_it_was(corpus: vlhmm.Corpus, finished: Path) -> None:
    run = row_run(small_table(finished), "HMM", corpus)
    model, recipe = vlhmm.load(run.folder).model, run.row.settings
    assert isinstance(recipe, Recipe)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured = seconds_per_epoch(model, recipe, corpus)
    assert measured.value > 0
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_side_by_side_gives_what_one_after_the_other_gives(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    for folder in (apart, together):
        folder.mkdir()
    table = small_table(together)
    runs = [row_run(table, row.name, corpus) for row in table.rows]
    events = list(train_side_by_side([(run, corpus) for run in runs], torch.device("cpu"), 2))
    done = {run.row.name: event.result for run, event in events if isinstance(event, RowDone)}
    seen = done.keys()
    assert seen == {run.row.name for run in runs}
    assert not any("seconds_per_epoch" in result.measured for result in done.values())
    for name in seen:
        events_of(row_run(small_table(apart), name, corpus), corpus)
        run = row_run(table, name, corpus)
        events = events_of(run, corpus)
        # Nothing was left to train.
        assert not any(isinstance(event, StepEvent) for event in events)
        alone = row_run(small_table(apart), name, corpus).found()
        beside = run.found()
        assert alone is not None
        assert beside is not None
        assert beside[1].measured["valid"] == alone[1].measured["valid"]
        assert beside[1].curve == alone[1].curve
        assert beside[1].measured.keys() == alone[1].measured.keys()


def test_what_a_row_makes_due_goes_before_what_waits(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_table(tmp_path)
    first, waits, due = [row_run(table, row.name, corpus) for row in table.rows]
    heard = threading.Semaphore(1)

    def trained(*_: Any, **__: Any) -> Iterator[RowEvent]:
        # No row goes on before the end of the one before it was heard of.
        assert heard.acquire(timeout=60)
        yield from ()

    def after(run: RowRun) -> list[tuple[RowRun, vlhmm.Corpus]]:
        heard.release()
        return [(due, corpus)] if run is first else []

    monkeypatch.setattr(side_by_side, "run_row", trained)
    runs = [(run, corpus) for run in (first, *[waits] * 6)]
    order = [run for run, _ in train_side_by_side(runs, torch.device("cpu"), 1, after=after)]
    assert len(order) == 8
    # Two may have been taken before the first was heard of.
    assert order.index(due) <= 3


def test_beside_others_no_kernel_is_taken_whose_programs_wait(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[tilings.Method]()

    def watched(*arguments: Any, **options: Any) -> Iterator[RowEvent]:
        for event in run_row(*arguments, **options):
            taken.append(tilings.method_for(200, 512, torch.device("cpu"), "highest"))
            yield event

    monkeypatch.setattr(side_by_side, "run_row", watched)
    for jobs, method in ((2, "launches"), (1, "persistent")):
        (tmp_path / str(jobs)).mkdir()
        run = row_run(small_table(tmp_path / str(jobs)), "HMM", corpus)
        list(train_side_by_side([(run, corpus)], torch.device("cpu"), jobs))
        assert set(taken) == {method}
        taken.clear()


RECURRENT = """
title = "Recurrent networks"
corpus = "tiny"
columns = ["valid", "seconds_per_epoch"]
changes = { epochs = 3, batch_size = 2, window = 8 }
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_recurrent_networks_train_side_by_side_and_are_timed_alone(
    corpus: vlhmm.Corpus, tmp_path: Path, device: str
) -> None:
    """On a GPU one captures its step while another still runs without a graph."""
    rows = "".join(
        f'[[rows]]\nname = "{size}"\nbaseline = "lstm"\nchanges = {{ dim = {size} }}\n' for size in (8, 12, 16)
    )
    table = small_table(tmp_path, RECURRENT + rows)
    runs = [row_run(table, row.name, corpus) for row in table.rows]
    events = [event for _, event in train_side_by_side([(run, corpus) for run in runs], torch.device(device), 3)]
    assert [event.error for event in events if isinstance(event, TrainingEnded)] == [None] * 3
    results = [event.result for event in events if isinstance(event, RowDone)]
    assert len(results) == 3
    assert not any("seconds_per_epoch" in result.measured for result in results)
    for run in runs:
        assert run.found() is None
        *_, last = run_row(run, corpus, torch.device(device))
        assert isinstance(last, RowDone)
        assert last.result.measured["seconds_per_epoch"] > 0


def test_a_run_that_was_never_saved_begins_anew(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    run = row_run(small_table(tmp_path), "HMM", corpus)
    events_of(run, corpus)
    found = run.found()
    assert found is not None
    found[0].unlink()
    (run.folder / STATE).unlink()
    events_of(run, corpus)
    again = run.found()
    assert again is not None
    # Not twice as long, though the log of the first is still there.
    assert again[1].curve == found[1].curve
    assert again[1].measured["valid"] == found[1].measured["valid"]


def test_times_can_be_taken_when_the_training_is_gone(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    run = row_run(small_table(tmp_path), "HMM", corpus)
    list(train_side_by_side([(run, corpus)], torch.device("cpu"), 2))
    assert run.found() is None
    scored = run.scored()
    assert scored is not None
    shutil.rmtree(run.folder)
    events = events_of(run, corpus)
    assert not any(isinstance(event, StepEvent) for event in events)
    timed = run.found()
    assert timed is not None
    assert timed[1].measured["training_ms"] > 0
    assert {**timed[1].measured, **scored[1].measured} == timed[1].measured


def test_a_row_out_of_time_is_not_trained_to_its_end(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    runs = [row_run(table, row.name, corpus) for row in table.rows]
    # The first rows begin at once and stop at their first step; whatever has not begun by then never does.
    of_corpus = [(run, corpus) for run in runs]
    events = list(train_side_by_side(of_corpus, torch.device("cpu"), 2, max_seconds=1e-3))
    assert sum(isinstance(event, TrainingEnded) for _, event in events) == len(runs)
    assert not any(isinstance(event, RowDone) for _, event in events)


def test_an_error_leaves_the_others_alone(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    runs = [row_run(table, row.name, corpus) for row in table.rows]
    text = runs[0].folder
    text.parent.mkdir(parents=True)
    text.write_text("in the way of the run's folder")
    events = list(train_side_by_side([(run, corpus) for run in runs], torch.device("cpu"), 2))
    errors = [event.error for _, event in events if isinstance(event, TrainingEnded) and event.error is not None]
    assert [text.name in str(error) for error in errors] == [True]
    assert [run for run in runs if run.scored() is None] == runs[:1]


def test_the_running_perplexity_is_of_the_epoch_before_the_best_check() -> None:
    log = [{"kind": "step", "step": step, "perplexity": float(step)} for step in (10, 20, 30, 40, 50)]
    log += [
        {"kind": "check", "step": 40, "valid_perplexity": 3.0},
        {"kind": "check", "step": 50, "valid_perplexity": 4.0},
    ]
    assert running_train(log, 20) == pytest.approx((30 * 40) ** 0.5)
    assert running_train(log[:5], 20) is None


def test_a_thinned_curve_keeps_the_best_and_the_last_check() -> None:
    log = [{"kind": "check", "tokens": t, "valid_perplexity": abs(t - 333) + 2.0} for t in range(1, 1001)]
    curve = thinned_curve(log)
    assert len(curve) <= CURVE_POINTS + 2
    assert min(curve, key=lambda point: point["valid"]) == {"tokens": 333, "valid": 2.0}
    assert curve[-1]["tokens"] == 1000
    assert curve == sorted(curve, key=lambda point: point["tokens"])
    assert thinned_curve([]) == []
