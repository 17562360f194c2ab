"""Rows that do not begin at random, or do not climb a gradient: what they share, what decides them, and what they give."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tables import events_of, row_run, small_corpus, small_table
from tiny import sentences
from tiny_teacher import write_tiny_teacher

import vlhmm
from experiments import taught_training
from experiments.results import identity_of
from experiments.row_events import RowStopped, Working
from experiments.row_settings import BaumWelchHMM, RestartedHMM, TaughtHMM
from experiments.rows import RowDone, RowEvent, run_row
from experiments.table_file import TableFile
from vlhmm.data import Tokens
from vlhmm.distillation.decoder import DecoderSettings, DecoderTraining, decoder_training
from vlhmm.distillation.teachers import load_teacher
from vlhmm.models import load_body
from vlhmm.training.checkpoint import load_model, read_tensors
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import STATE, RunFolder, read_log
from vlhmm.training.trainer import CheckEvent, StepEvent

TABLE = """
title = "A small table"
corpus = "tiny"
columns = ["valid", "test"]
windows = 16
timings = false
preset = "lee2025-scalar"
changes = { states_per_block = 4, dim = 8, batch_size = 4, window = 16, checks_per_epoch = 1, learning_rate = 0.1 }
teacher = { tokens = 128, dim = 8, layers = 1, heads = 1 }
lvd = { cluster_tokens = 256, joint_tokens = 128 }

[[rows]]
name = "plain"

[[rows]]
name = "taught"
teacher = { lvd = true }

[[rows]]
name = "taught for ever"
teacher = { lvd = true }
lvd = { joint_tokens = -1 }

[[rows]]
name = "embeddings"
preset = "lee2025-psi-mlp"
teacher = { lvd = false, centroids = true, output = true }

[[rows]]
name = "body"
preset = "lee2025-iota-trf"
teacher = { lvd = false, body = true }

[[rows]]
name = "Baum-Welch"
em = { iterations = 2, batch_size = 4, window = 16 }

[[rows]]
name = "two starts"
restarts = { number = 2 }

[[rows]]
name = "part"
tokens = 400
"""


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return small_corpus()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    return small_table(tmp_path_factory.mktemp("taught"), TABLE)


def finished(events: Sequence[RowEvent]) -> RowDone:
    last = events[-1]
    assert isinstance(last, RowDone)
    assert last.result.status == "finished"
    return last


def test_sections_make_the_kind_of_a_row_and_take_the_files_values(table: TableFile) -> None:
    kinds = {row.name: type(row.settings) for row in table.rows}
    assert kinds["plain"] is kinds["part"] is Recipe
    assert kinds["taught"] is kinds["body"] is TaughtHMM
    assert kinds["Baum-Welch"] is BaumWelchHMM
    assert kinds["two starts"] is RestartedHMM
    taught, for_ever = table.row("taught").settings, table.row("taught for ever").settings
    assert isinstance(taught, TaughtHMM)
    assert isinstance(for_ever, TaughtHMM)
    assert (taught.teacher.tokens, taught.lvd.joint_tokens, for_ever.lvd.joint_tokens) == (128, 128, -1)
    assert for_ever.lvd.cluster_tokens == 256


def test_all_that_decides_a_row_is_in_its_identity(table: TableFile) -> None:
    text = {"corpus": "0123"}
    assert len({identity_of(row, text, 0).hash for row in table.rows}) == len(table.rows)
    plain = identity_of(table.row("plain"), text, 0)
    streamed = small_table(table.path.parent, TABLE.replace("windows = 16\n", ""), "streamed.toml")
    assert identity_of(streamed.row("plain"), text, 0).hash != plain.hash
    stronger = small_table(table.path.parent, TABLE.replace("tokens = 128, dim", "tokens = 256, dim"), "stronger.toml")
    assert identity_of(stronger.row("taught"), text, 0).hash != identity_of(table.row("taught"), text, 0).hash
    assert identity_of(stronger.row("plain"), text, 0).hash == plain.hash


def test_teachers_and_clusters_are_made_once(table: TableFile, corpus: vlhmm.Corpus) -> None:
    first = events_of(row_run(table, "taught", corpus), corpus)
    finished(first)
    said = " ".join(event.what for event in first if isinstance(event, Working))
    assert "teacher," in said
    assert "k-means" in said
    runs = table.path.parent / "runs"
    kept = set((runs / "clusters").glob("*.safetensors"))
    assert len(kept) == 1
    for name in ("taught for ever", "embeddings"):
        events = events_of(row_run(table, name, corpus), corpus)
        finished(events)
        said = " ".join(event.what for event in events if isinstance(event, Working))
        assert "teacher," not in said
        assert "k-means" not in said
    assert set((runs / "clusters").glob("*.safetensors")) == kept
    assert len([path for path in (runs / "teachers").iterdir() if path.is_dir()]) == 1


def test_the_text_that_is_clustered_is_not_trained_on(table: TableFile, corpus: vlhmm.Corpus) -> None:
    events = events_of(row_run(table, "taught", corpus, seed=1), corpus)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert steps[-1].num_steps == (len(corpus.train) - 256) // 64
    log = read_log(row_run(table, "taught", corpus, seed=1).folder)
    assert log[-1]["kind"] == "check"


def test_a_body_gives_the_model_its_size(table: TableFile, corpus: vlhmm.Corpus) -> None:
    run = row_run(table, "body", corpus)
    finished(events_of(run, corpus))
    settings = load_model(run.folder).model.settings
    # The preset has 4 layers and 4 heads.
    assert (settings.dim, settings.decoder_layers, settings.decoder_heads) == (8, 1, 1)


def test_a_body_is_centred_where_the_row_says_so(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()

    def watched(*arguments: Any, centred: bool) -> None:
        asked.append(centred)
        load_body(*arguments, centred=centred)

    monkeypatch.setattr(taught_training, "load_body", watched)
    centred = TABLE.replace("body = true", "body = true, centred = true")
    for name, text in (("plain.toml", TABLE), ("centred.toml", centred)):
        finished(events_of(row_run(small_table(tmp_path, text, name), "body", corpus), corpus))
    assert asked == [False, True]


def test_a_bad_beginning_is_no_divergence(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    wide = '\n[[rows]]\nname = "wide"\npreset = "lee2025-b"\nchanges = { dim = 512 }\nteacher = { lvd = true }\n'
    events = events_of(row_run(small_table(tmp_path, TABLE + wide), "wide", corpus), corpus)
    first = next(event for event in events if isinstance(event, StepEvent))
    # Far above what knowing nothing costs.
    assert first.loss > 10 * math.log(corpus.tokenizer.vocab_size)
    finished(events)


def test_baum_welch_rows_give_their_best_pass(table: TableFile, corpus: vlhmm.Corpus) -> None:
    result = finished(events_of(row_run(table, "Baum-Welch", corpus), corpus)).result
    assert result.measured["seconds_per_epoch"] > 0
    assert len(result.curve) == 2
    uniform = corpus.tokenizer.vocab_size
    assert result.measured["valid"] < uniform


def test_of_several_starts_the_best_is_taken(table: TableFile, corpus: vlhmm.Corpus) -> None:
    run = row_run(table, "two starts", corpus)
    done = finished(events_of(run, corpus))
    best = [
        min(
            record["valid_perplexity"]
            for record in read_log(run.folder / f"start-{start}")
            if record["kind"] == "check"
        )
        for start in (0, 1)
    ]
    assert best[0] != best[1]
    assert min(point["valid"] for point in done.result.curve) == pytest.approx(min(best), abs=1e-3)
    assert done.result.measured["parameters"] == load_model(run.folder / "start-0").model.num_parameters


def test_perplexity_is_that_of_windows_where_the_table_says_so(table: TableFile, corpus: vlhmm.Corpus) -> None:
    result = finished(events_of(row_run(table, "plain", corpus), corpus)).result
    assert "independent windows of 16 tokens" in result.protocols["valid"]
    assert "the first" in result.protocols["train"]
    assert "training_ms" not in result.measured
    part = finished(events_of(row_run(table, "part", corpus), corpus)).result
    assert part.data["train_tokens"] == 400


def test_a_taught_row_that_ran_out_of_time_goes_on_to_the_same_result(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    expected = finished(events_of(row_run(small_table(whole, TABLE), "taught", corpus), corpus)).result
    run = row_run(small_table(parts, TABLE), "taught", corpus)
    assert isinstance(events_of(run, corpus, max_seconds=0.0)[-1], RowStopped)
    result = finished(events_of(run, corpus)).result
    assert result.measured["valid"] == expected.measured["valid"]


def test_time_that_runs_out_before_training_ends_the_row_at_once(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE.replace("tokens = 128, dim", "tokens = 6400, dim"))
    run = row_run(table, "taught", corpus)
    first = events_of(run, corpus, max_seconds=0.0)[-1]
    assert isinstance(first, RowStopped)
    # The teacher's steps.
    assert (first.reason, first.step, first.num_steps) == ("time", 1, 100)
    teacher = next(path for path in (tmp_path / "runs" / "teachers").iterdir() if path.is_dir())
    list(decoder_training(corpus, *_as_trained(teacher), out=teacher, resume=True))
    events = events_of(run, corpus, max_seconds=0.0)
    assert isinstance(events[-1], RowStopped)
    # Vectors were being read: neither k-means nor a step of the row came after.
    assert [event.what for event in events if isinstance(event, Working)] == ["vectors of the teacher"]
    assert not any(isinstance(event, StepEvent) for event in events)
    assert not list((tmp_path / "runs" / "clusters").glob("*.safetensors"))


def _as_trained(teacher: Path) -> tuple[DecoderSettings, DecoderTraining]:
    _, metadata = read_tensors(teacher / STATE)
    about = json.loads(metadata["state"])["about"]
    return DecoderSettings(**about["decoder"]), DecoderTraining(**about["training"])


def test_a_taught_row_saves_no_oftener_than_others(
    corpus: vlhmm.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_table(tmp_path, TABLE.replace("checks_per_epoch = 1", "checks_per_epoch = 4"))
    saved: list[Path] = []
    save_state = RunFolder.save_state

    def counted(folder: RunFolder, *state: Any) -> None:
        saved.append(folder.path)
        save_state(folder, *state)

    monkeypatch.setattr(RunFolder, "save_state", counted)
    for name in ("plain", "taught"):
        run = row_run(table, name, corpus)
        events = events_of(run, corpus)
        assert sum(isinstance(event, CheckEvent) for event in events) == 4
        assert saved.count(run.folder) == 1


def test_blocks_are_those_of_a_row_that_trains_on_the_same_text(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    blocked = 'changes = { clustering = "brown", num_blocks = 3, refine = false, transition = "block-factored" }'
    rows = f"""
[[rows]]
name = "blocked"
preset = "lee2025-b"
{blocked}
tokens = 512

[[rows]]
name = "blocked, taught"
preset = "lee2025-b"
{blocked}
tokens = 768
teacher = {{ lvd = true }}
"""
    table = small_table(tmp_path, TABLE + rows)
    for name in ("blocked", "blocked, taught"):
        finished(events_of(row_run(table, name, corpus), corpus))
    assert len(list((tmp_path / "runs" / "blocks").glob("*.tsv"))) == 1


def test_a_teacher_that_was_never_trained_teaches_too(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE).with_changes(None, {"teacher.tokens": "0"})
    for name in ("taught", "body"):
        finished(events_of(row_run(table, name, corpus), corpus))
    assert not (tmp_path / "runs" / "teachers").exists()
    # Its vectors are of its own words alone, but those are something to begin from.
    assert len(list((tmp_path / "runs" / "clusters").glob("*.safetensors"))) == 1


def test_a_pretrained_model_gives_states_and_layers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_tiny_teacher(tmp_path / "teacher", num_steps=5)
    tokenizer = load_teacher(str(tmp_path / "teacher")).tokenizer
    texts = [
        Tokens.from_documents(
            [tokenizer.encode(" ".join(words)) for words in sentences(num, seed)], tokenizer.vocab_size
        )
        for seed, num in enumerate((120, 30, 30))
    ]
    corpus = vlhmm.Corpus.from_splits("tiny", tokenizer, *texts)
    of_teacher = f'teacher = {{ name = "{tmp_path / "teacher"}"'
    table = small_table(tmp_path, TABLE.replace("teacher = { lvd", f"{of_teacher}, lvd"))
    for name in ("taught", "body"):
        said = events_of(row_run(table, name, corpus), corpus)
        result = finished(said).result
        assert not any("teacher, loss" in event.what for event in said if isinstance(event, Working))
        assert result.settings["teacher"]["name"] == str(tmp_path / "teacher")
    # The HMM's networks have the size of the layers that they took over.
    assert load_model(row_run(table, "body", corpus).folder).model.settings.dim == 32


def test_what_is_asked_for_later_includes_timings(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    events_of(row_run(small_table(tmp_path, TABLE), "plain", corpus), corpus)
    timed = small_table(tmp_path, TABLE.replace("timings = false\n", ""), "timed.toml")
    result = finished(list(run_row(row_run(timed, "plain", corpus), corpus, torch.device("cpu")))).result
    assert result.measured["seconds_per_epoch"] > 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("teacher = { lvd = true }\nlvd", "teacher = { lvd = true }\nem = { rate = 0.1 }\nlvd", "do not go together"),
        ("restarts = { number = 2 }", "restarts = { number = 0 }", "number is 0"),
        ("restarts = { number = 2 }", "restarts = { nunber = 2 }", "did you mean 'number'"),
        ("restarts = { number = 2 }", "restarts = 2", "must give settings by name"),
        ("lvd = false, body = true", "lvd = false, body = false", "gives nothing"),
        ("lvd = false, body = true", "lvd = true, centred = true", "said of the body"),
        ("tokens = 400", "tokens = 400\ntrain_fraction = 0.5", "tokens and train_fraction"),
        ("tokens = 400", "tokens = -1", "at least 0"),
        ("tokens = 400", "seeds = [0.5]", "whole numbers"),
        ("tokens = 400", "rates = [0.1]", "no rate_tokens"),
        ("tokens = 400", 'rate_of = "plain"', "no row with rates"),
    ],
)
def test_bad_sections_are_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in TABLE
    with pytest.raises(ValueError, match=message):
        small_table(tmp_path, TABLE.replace(before, after))


def test_sections_can_be_changed_by_name(table: TableFile) -> None:
    changed = table.with_changes(None, {"lvd.joint_tokens": "64", "teacher.tokens": "0", "em.rate": "0.5"})
    taught, em = changed.row("taught").settings, changed.row("Baum-Welch").settings
    assert isinstance(taught, TaughtHMM)
    assert isinstance(em, BaumWelchHMM)
    assert (taught.lvd.joint_tokens, taught.teacher.tokens, em.em.rate) == (64, 0, 0.5)
    with pytest.raises(ValueError, match=r"has a setting 'lvd\.joint'"):
        table.with_changes(None, {"lvd.joint": "64"})
