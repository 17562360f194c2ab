"""A teacher of the same text, its samples, their mixture with the text, and the fine-tuning: each stage by itself and all of it."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_corpus

import vlhmm
from vlhmm.baselines import AWDLSTMSettings, LSTMSettings, NeuralScorer, build_baseline
from vlhmm.baselines.folder import load_baseline, save_baseline
from vlhmm.data import Tokens, load_corpus
from vlhmm.distillation.stage_records import MIXTURE, SAMPLES, TEACHER
from vlhmm.distillation.stages import mixture
from vlhmm.distillation.teachers.continuations import ContinuationSettings, baseline_writer, draw_continuations
from vlhmm.progress import result_of
from vlhmm.reports import Plan, as_json, read_plan, train_and_report, training_run
from vlhmm.tensor_file import FolderError, read_tensors
from vlhmm.training.em import EMSettings
from vlhmm.training.presets import Recipe, preset
from vlhmm.training.trainer import CheckEvent, StepEvent

SMALL = {
    "num_blocks": "4",
    "states_per_block": "4",
    "dim": "8",
    "epochs": "1",
    "batch_size": "4",
    "window": "8",
    "checks_per_epoch": "1",
    "teacher.kind": "lstm",
    "teacher.dim": "8",
    "teacher.epochs": "2",
    "teacher.batch_size": "4",
    "teacher.window": "8",
    "teacher.checks_per_epoch": "1",
    "samples.tokens": "600",
    "samples.length": "8",
    "samples.prefix": "4",
    "samples.batch_size": "25",
    "samples.real_copies": "2",
    "finetune.epochs": "1",
    "finetune.batch_size": "4",
    "finetune.window": "8",
    "finetune.checks_per_epoch": "2",
}
RECIPE = preset("taught-ptb").with_changes(SMALL)


@pytest.fixture
def corpus():
    return tiny_corpus(100)


@pytest.fixture
def plan():
    return Plan(RECIPE, "tiny", None)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return vlhmm.load(folder).model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_one_call_makes_every_stage_and_says_how_long_each_took(plan, corpus, tmp_path):
    results = train_and_report(plan, corpus, tmp_path / "run")
    assert [stage.name for stage in results.stages] == [TEACHER, SAMPLES, MIXTURE]
    assert all(stage.finished and stage.seconds > 0 for stage in results.stages)
    assert results.stopped == "finished"
    told = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(told["stage_seconds"]) == [TEACHER, SAMPLES, MIXTURE, "finetuning"]
    assert math.isclose(told["total_seconds"], sum(told["stage_seconds"].values()))
    assert told["perplexity"]["HMM"]["test"] > 1
    # The model's folder says it too, and its card shows it.
    about = vlhmm.load(tmp_path / "run").about
    assert about["samples"]["real_copies"] == 2
    assert about["teacher"]["kind"] == "lstm"
    assert about["mixture"]["tokens_in_all"] == results.stages[2].tokens


def test_fine_tuning_begins_with_the_weights_of_the_mixture(plan, corpus, tmp_path):
    still = replace(RECIPE.stages.finetune, learning_rate=1e-12, ema=0.0, weight_decay=0.0)
    recipe = replace(RECIPE, stages=replace(RECIPE.stages, finetune=still))
    train_and_report(Plan(recipe, "tiny", None), corpus, tmp_path / "run", score_held_out=False)
    found, begun = weights(tmp_path / "run"), weights(tmp_path / "run" / MIXTURE)
    assert all(torch.allclose(found[name].double(), begun[name].double(), atol=1e-6) for name in begun)


def test_without_evaluation_no_held_out_figure_is_told(plan, corpus, tmp_path):
    results = train_and_report(plan, corpus, tmp_path / "run", score_held_out=False)
    assert results.figures is None
    assert "perplexity" not in as_json(results)


@pytest.mark.parametrize("stopped_in", [TEACHER, MIXTURE, "finetuning"])
def test_a_run_that_is_stopped_in_any_stage_goes_on_to_the_same_bits(stopped_in, plan, corpus, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_and_report(plan, corpus, whole, score_held_out=False)
    # Where a step of that stage is under way; the first checks of the last two are long past their first steps.
    events = training_run(plan, corpus, parts, score_held_out=False)
    for event in events:
        in_teacher = getattr(event, "what", "") == "training the teacher" and event.done == 3
        in_mixture = isinstance(event, StepEvent) and (parts / MIXTURE).exists() and event.step == 3
        in_last = isinstance(event, CheckEvent) and (parts / MIXTURE / "stage.json").exists()
        if {TEACHER: in_teacher, MIXTURE: in_mixture, "finetuning": in_last}[stopped_in]:
            break
    events.close()
    assert read_plan(parts) == plan
    results = train_and_report(plan, corpus, parts, resume=True, score_held_out=False)
    assert results.stopped == "finished"
    assert same(weights(parts), weights(whole))


def test_time_that_is_up_stops_before_the_next_stage_and_scores_nothing(plan, corpus, tmp_path):
    stopped = train_and_report(plan, corpus, tmp_path / "run", max_seconds=0.0)
    assert (stopped.stopped, stopped.figures) == ("time", None)
    assert not (tmp_path / "run" / SAMPLES).exists()
    assert train_and_report(plan, corpus, tmp_path / "run", resume=True).stopped == "finished"


def test_finished_stages_of_another_run_are_taken_over(plan, corpus, tmp_path):
    train_and_report(plan, corpus, tmp_path / "first", score_held_out=False)
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "first" / TEACHER, tmp_path / "second" / TEACHER)
    (tmp_path / "second" / SAMPLES).symlink_to(tmp_path / "first" / SAMPLES)
    notes = [event.text for event in training_run(plan, corpus, tmp_path / "second") if hasattr(event, "text")]
    assert sum("finished before" in note for note in notes) == 2
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))


def test_a_stage_of_other_settings_is_refused_with_their_names(plan, corpus, tmp_path):
    train_and_report(plan, corpus, tmp_path / "first", score_held_out=False)
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "first" / TEACHER, tmp_path / "second" / TEACHER)
    other = Plan(RECIPE.with_changes({"teacher.epochs": "3"}), "tiny", None)
    with pytest.raises(FolderError, match=r"settings.epochs = 2, not 3"):
        train_and_report(other, corpus, tmp_path / "second")


def test_a_teacher_that_is_trained_already_is_named_by_its_folder(plan, corpus, tmp_path):
    train_and_report(plan, corpus, tmp_path / "first", score_held_out=False)
    shutil.copytree(tmp_path / "first" / TEACHER, tmp_path / "teacher")
    given = {"teacher.kind": "pretrained", "teacher.model": str(tmp_path / "teacher")}
    results = train_and_report(
        Plan(RECIPE.with_changes(given), "tiny", None), corpus, tmp_path / "second", score_held_out=False
    )
    assert [stage.name for stage in results.stages] == [SAMPLES, MIXTURE]
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))


def test_a_folder_with_a_run_is_refused_without_resume(plan, corpus, tmp_path):
    train_and_report(plan, corpus, tmp_path / "run", max_seconds=0.0)
    with pytest.raises(FolderError, match="--resume"):
        train_and_report(plan, corpus, tmp_path / "run")


def test_a_mixture_has_every_sample_once_and_every_real_token_as_often_as_asked():
    samples = Tokens.from_documents([[0, 1, 2, 3]] * 5, vocab_size=50)
    real = Tokens.from_documents([list(range(10, 20)), list(range(20, 34))], vocab_size=50)
    mixed = mixture(samples, real, copies=3, length=4, seed=0)
    assert mixed.num_documents == 5 + 3 * 6
    assert set(np.diff(mixed.offsets)) == {4}
    counted = Counter(mixed.ids.tolist())
    assert all(counted[word] == 3 for word in range(10, 34))
    assert all(counted[word] == 5 for word in range(4))
    # Stretches of the text in its order, its end followed by its beginning.
    for number in range(5, mixed.num_documents):
        stretch = mixed.document(number).astype(int)
        assert set((np.diff(stretch) % 24).tolist()) == {1}


def test_a_real_text_shorter_than_a_sample_is_one_stretch():
    samples = Tokens.from_documents([[0] * 9], vocab_size=5)
    real = Tokens.from_documents([[1, 2, 3]], vocab_size=5)
    mixed = mixture(samples, real, copies=2, length=9, seed=1)
    assert np.diff(mixed.offsets).tolist() == [9, 3, 3]


def continuations(folder: Path, corpus, tokens: int, **changes):
    model = build_baseline(LSTMSettings(dim=8), corpus.tokenizer.vocab_size, torch.Generator().manual_seed(0))
    given = {"length": 6, "prefix": 3, "temperature": 1.0, "batch_size": 10, "seed": 0, **changes}
    settings = ContinuationSettings("a teacher", corpus.hash, device="cpu", **given)
    events = list(draw_continuations(folder, settings, tokens, lambda: baseline_writer(model, settings), corpus))
    return model, events


def test_samples_load_as_a_corpus_whose_held_out_text_is_the_real_one(corpus, tmp_path):
    continuations(tmp_path / "samples", corpus, 100)
    found = load_corpus(tmp_path / "samples")
    assert (len(found.train), found.train.num_documents) == (120, 20)
    assert np.array_equal(found.valid.ids, corpus.valid.ids)
    assert np.array_equal(found.test.ids, corpus.test.ids)
    settings = json.loads((tmp_path / "samples" / "samples.json").read_text())
    assert (settings["teacher"], settings["prefix"], settings["seed"]) == ("a teacher", 3, 0)


def test_a_sample_has_the_probability_that_the_teacher_gives_it_after_some_real_prefix(corpus, tmp_path):
    model, _ = continuations(tmp_path / "samples", corpus, 60)
    rated = json.loads((tmp_path / "samples" / "teacher.json").read_text())
    found = load_corpus(tmp_path / "samples").train
    ids = torch.from_numpy(np.asarray(corpus.train.ids).astype(np.int64))
    prefixes = ids.unfold(0, 3, 1)
    likely = torch.empty(10, len(prefixes), 6)
    for row in range(10):
        sample = torch.from_numpy(found.document(row).astype(np.int64)).expand(len(prefixes), -1)
        lengths = torch.full((len(prefixes),), 9)
        scored, _ = NeuralScorer(model).score_window(torch.cat([prefixes, sample], 1), lengths, None)
        likely[row] = scored[:, 3:]
    # One of the prefixes explains the recorded log-probability of each row, and the file's mean is theirs.
    recorded = read_tensors(tmp_path / "samples" / "shards" / "000000.safetensors")[0]["log_probs"]
    nearest = (likely.sum(2).double() - recorded[:, None]).abs().amin(1)
    assert float(nearest.max()) < 1e-4
    assert math.isclose(rated["perplexity"], math.exp(-float(recorded.sum()) / 60), rel_tol=1e-9)
    assert len(rated["perplexity_by_position"]) == 6


def test_drawing_more_later_keeps_what_was_drawn(corpus, tmp_path):
    continuations(tmp_path / "more", corpus, 60)
    first = (tmp_path / "more" / "shards" / "000000.safetensors").read_bytes()
    _, events = continuations(tmp_path / "more", corpus, 180)
    assert [event.num_tokens for event in events] == [120, 180]
    assert (tmp_path / "more" / "shards" / "000000.safetensors").read_bytes() == first
    continuations(tmp_path / "once", corpus, 180)
    assert load_corpus(tmp_path / "more").hash == load_corpus(tmp_path / "once").hash


def test_samples_of_other_settings_are_refused(corpus, tmp_path):
    continuations(tmp_path / "samples", corpus, 60)
    with pytest.raises(FolderError, match=r"temperature = 1.0, not 0.5"):
        continuations(tmp_path / "samples", corpus, 60, temperature=0.5)


def test_a_prefix_longer_than_the_text_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"samples\.prefix smaller"):
        continuations(tmp_path / "samples", corpus, 60, prefix=10**6)


def test_samples_without_prefix_begin_where_a_text_does(corpus, tmp_path):
    _, events = continuations(tmp_path / "samples", corpus, 60, prefix=0)
    assert events[-1].num_tokens == 60


@pytest.mark.parametrize(
    "settings", [LSTMSettings(dim=6), AWDLSTMSettings(embedding_dim=6, hidden_dim=9, num_layers=2)]
)
def test_a_saved_baseline_is_read_back(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("vlhmm.baselines.folder.FILE_BYTES", 500)
    model = build_baseline(settings, 30, torch.Generator().manual_seed(0))
    save_baseline(tmp_path / "b", model, "tokens", {"corpus": "tiny"})
    files = sorted((tmp_path / "b").glob("*.safetensors"))
    assert len(files) > 2
    found = load_baseline(tmp_path / "b")
    assert same(found.model.state_dict(), model.state_dict())
    assert (found.tokenizer, found.about, found.model.settings) == ("tokens", {"corpus": "tiny"}, settings)
    save_baseline(tmp_path / "half", model, "tokens", {}, dtype="float16")
    half = load_baseline(tmp_path / "half")
    assert half.hash != found.hash
    for name, value in half.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name].half().float())


def test_damage_of_a_saved_baseline_is_found(tmp_path):
    save_baseline(tmp_path, build_baseline(LSTMSettings(dim=6), 30), "tokens", {})
    path = tmp_path / "weights-00.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"weights-00.safetensors is damaged"):
        load_baseline(tmp_path)
    path.unlink()
    with pytest.raises(FolderError, match=r"lacks weights-00.safetensors"):
        load_baseline(tmp_path)
    with pytest.raises(FolderError, match=r"no baseline.json"):
        load_baseline(tmp_path / "nothing")


def test_stages_are_for_gradient_training_alone(corpus, tmp_path):
    plan = Plan(RECIPE, "tiny", None, em=EMSettings())
    with pytest.raises(ValueError, match="leave out em"):
        result_of(training_run(plan, corpus, tmp_path / "run"))


def test_a_sample_may_begin_with_the_end_of_its_prefix(corpus, tmp_path):
    _, (event, *_) = continuations(tmp_path / "samples", corpus, 60, context=2)
    found = load_corpus(tmp_path / "samples").train
    assert (event.num_tokens, len(found), set(np.diff(found.offsets))) == (60, 80, {8})
    _, bare = continuations(tmp_path / "bare", corpus, 60)
    drawn = load_corpus(tmp_path / "bare").train.ids.reshape(10, 6)
    assert np.array_equal(found.ids.reshape(10, 8)[:, 2:], drawn)
    assert event.perplexity == bare[0].perplexity
    rated, without = (json.loads((tmp_path / name / "teacher.json").read_text()) for name in ("samples", "bare"))
    assert rated == without
    prefixes = np.lib.stride_tricks.sliding_window_view(corpus.train.ids, 3)
    assert {tuple(row) for row in found.ids.reshape(10, 8)[:, :2]} <= {tuple(row) for row in prefixes[:, 1:]}
    settings = [json.loads((tmp_path / name / "samples.json").read_text()) for name in ("samples", "bare")]
    # As it was before there was a context, so that such folders go on.
    assert settings[0] == {**settings[1], "context": 2}


def test_a_prefix_may_have_several_samples(corpus, tmp_path):
    _, (event, *_) = continuations(tmp_path / "samples", corpus, 150, context=3, per_prefix=3)
    rows = load_corpus(tmp_path / "samples").train.ids.reshape(3, 10, 9)
    assert event.num_tokens == 180
    assert np.array_equal(rows[0, :, :3], rows[1, :, :3])
    assert np.array_equal(rows[0, :, :3], rows[2, :, :3])
    # Of ten samples of six tokens hardly any are the same by chance.
    assert all((rows[one, :, 3:] != rows[other, :, 3:]).any(1).sum() >= 9 for one, other in ((0, 1), (0, 2), (1, 2)))
    continuations(tmp_path / "single", corpus, 60, context=3)
    assert np.array_equal(rows[0], load_corpus(tmp_path / "single").train.ids.reshape(10, 9))


def test_context_needs_samples_that_fill_its_windows():
    changes = {"windows": "independent", "context": "2", "samples.context": "2", "samples.length": "6"}
    assert RECIPE.with_changes(changes).train.context == 2
    for wrong in ({"samples.context": "1"}, {"samples.length": "7"}, {"window": "9"}):
        with pytest.raises(ValueError, match="context is 2"):
            RECIPE.with_changes({**changes, **wrong})
    sections = {
        section: values for section, values in RECIPE.with_changes(changes).to_dict().items() if section != "teacher"
    }
    with pytest.raises(ValueError, match="context is 2, but texts of gpt end where it ends them"):
        Recipe.from_dict({**sections, "teacher": {"kind": "pretrained", "model": "gpt"}})


def test_a_recipe_with_context_runs(corpus, tmp_path):
    changes = {"windows": "independent", "context": "2", "samples.context": "2", "samples.length": "6"}
    results = train_and_report(Plan(RECIPE.with_changes(changes), "tiny", None), corpus, tmp_path / "run")
    assert results.stopped == "finished"
    _, samples, mixed = results.stages
    assert samples.tokens == 600
    assert mixed.tokens >= 800 + 2 * len(corpus.train) - 2 * 4 * 8
