"""A run that starts from a trained model: as it is or split, refused where it does not fit, and resumed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus

import vlhmm
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.models import split_states
from vlhmm.reports import Plan, read_plan, train_and_report
from vlhmm.tensor_file import FolderError
from vlhmm.training.initial import SPLIT_NOISE, InitialWeights, initial_model, refuse_other_settings
from vlhmm.training.plan import forecast
from vlhmm.training.presets import preset

SMALL = {"num_blocks": "4", "dim": "8", "epochs": "1", "batch_size": "4", "window": "8", "checks_per_epoch": "1"}
RECIPE = preset("demo").with_changes({**SMALL, "states_per_block": "4"})
SCALAR = preset("scalar").with_changes({**SMALL, "states_per_block": "3", "dim": "256", "init_scale": "1.0"})


@pytest.fixture(scope="module")
def corpus():
    return tiny_corpus(60)


@pytest.fixture(scope="module")
def first(corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("first") / "run"
    train_and_report(Plan(RECIPE, "tiny", None), corpus, out, score_held_out=False)
    return out


@pytest.fixture(scope="module")
def scalar(corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("scalar") / "run"
    train_and_report(Plan(SCALAR, "tiny", None), corpus, out, score_held_out=False)
    return out


def perplexity(model: vlhmm.Model, corpus: vlhmm.Corpus) -> float:
    return evaluate(HMMScorer(model.double().tables().detach()), corpus.valid).perplexity


def from_it(folder: Path, **changes: object) -> Plan:
    # Blocks and model of another preset: those of the folder take their place.
    recipe = preset("cpu").with_changes({"epochs": "1", "batch_size": "4", "window": "8", "learning_rate": "1e-3"})
    return Plan(recipe, "tiny", None, initial=InitialWeights(folder, **changes))  # type: ignore[arg-type]


def test_a_run_starts_from_the_weights_of_the_folder_with_its_model(first, corpus, tmp_path):
    results = train_and_report(from_it(first), corpus, tmp_path / "run", score_held_out=False)
    begun, ended = (vlhmm.load(folder).model for folder in (first, tmp_path / "run"))
    assert begun.settings == ended.settings
    assert torch.equal(begun.group_of_word, ended.group_of_word)
    assert results.num_states == begun.support.num_states
    plan = read_plan(tmp_path / "run")
    assert plan.recipe.model == RECIPE.model
    assert plan.recipe.blocks.num_blocks == 4
    about = json.loads((tmp_path / "run" / "config.json").read_text())["about"]
    assert about["initial"]["folder"] == first.name
    assert about["initial"]["sha256"] == plan.initial.sha256
    # A thousandth of the rate: what it began with is still there.
    moved = (ended.emission.words.weight - begun.emission.words.weight).detach().abs().max()
    assert 0 < float(moved) < 0.1


@pytest.mark.parametrize("splits", [{"split_states": 2}, {"split_states": 3}])
def test_split_states_begin_at_the_perplexity_of_the_model(first, corpus, splits):
    before = perplexity(initial_model(first, corpus), corpus)
    larger = initial_model(first, corpus, **splits)
    assert larger.support.num_states == splits["split_states"] * 16
    assert perplexity(larger, corpus) == pytest.approx(before, rel=1e-6)


def test_split_blocks_of_free_tables_begin_at_the_perplexity_of_the_model(scalar, corpus):
    before = perplexity(initial_model(scalar, corpus), corpus)
    larger = initial_model(scalar, corpus, split_blocks=3, split_states=2)
    assert larger.support.num_groups == 3
    assert larger.support.num_states == 3 * 3 * 2
    assert perplexity(larger, corpus) == pytest.approx(before, rel=1e-6)


def test_a_forecast_shows_the_larger_model(first, corpus):
    sizes = forecast(from_it(first, split_states=2), corpus, torch.device("cpu"))
    assert sizes.num_states == 32
    assert sizes.recipe["model"]["states_per_block"] == 8
    assert sizes.num_parameters == split_states(vlhmm.load(first).model, 2).num_parameters
    assert sizes.initial is not None
    assert sizes.initial.noise == 0


def test_noise_is_for_runs_without_state_dropout(first):
    recipe = from_it(first).recipe
    undropped = replace(recipe, train=replace(recipe.train, state_dropout=0.0))
    assert InitialWeights(first, split_states=2).decided(recipe).noise == 0
    assert InitialWeights(first, split_states=2).decided(undropped).noise == SPLIT_NOISE
    assert InitialWeights(first).decided(undropped).noise == 0
    assert InitialWeights(first, split_states=2, noise=0.5).decided(recipe).noise == 0.5


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(first, corpus, tmp_path):
    copy = tmp_path / "first"
    shutil.copytree(first, copy)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_and_report(from_it(copy, split_states=2), corpus, whole, score_held_out=False)
    train_and_report(from_it(copy, split_states=2), corpus, parts, score_held_out=False, max_seconds=0.0)
    # Its own weights are all that it needs.
    shutil.rmtree(copy)
    train_and_report(read_plan(parts), corpus, parts, resume=True, score_held_out=False)
    one, other = (vlhmm.load(folder).model.state_dict() for folder in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_killed_before_its_first_save_needs_the_same_weights(first, corpus, tmp_path):
    copy, out = tmp_path / "first", tmp_path / "run"
    shutil.copytree(first, copy)
    plan = from_it(copy)
    out.mkdir()
    replace(plan, initial=plan.initial.decided(plan.recipe)).save(out)
    (copy / "model.safetensors").write_bytes(b"other")
    with pytest.raises(FolderError, match="has changed since the run was started"):
        train_and_report(read_plan(out), corpus, out, resume=True, score_held_out=False)


def test_what_does_not_fit_is_refused_with_the_reason(first, corpus, tmp_path):
    other = tiny_corpus(61)
    tokenizer = vlhmm.data.word_tokenizer(["other", "words"])
    foreign = replace(other, tokenizer=tokenizer)
    with pytest.raises(FolderError, match="read the corpus with the model's tokenizer"):
        initial_model(first, foreign)
    with pytest.raises(FolderError, match=r"has no model\.safetensors"):
        InitialWeights(tmp_path).decided(RECIPE)
    with pytest.raises(ValueError, match="split_states is 0"):
        InitialWeights(first, split_states=0)
    with pytest.raises(ValueError, match="noise is nan"):
        InitialWeights(first, noise=float("nan"))
    with pytest.raises(ValueError, match=r"dim = 16, but the model in .* has 8"):
        refuse_other_settings(InitialWeights(first), {"dim": 16})
    with pytest.raises(ValueError, match=r"num_blocks = 8 decides how words are put into blocks"):
        refuse_other_settings(InitialWeights(first), {"num_blocks": 8})
    refuse_other_settings(InitialWeights(first, split_states=2), {"dim": 8, "states_per_block": 8, "reset": "carry"})
    with pytest.raises(ValueError, match="transition 'block-factored' cannot be split"):
        initial_model(first, corpus, split_blocks=2)


def test_with_stages_the_mixture_is_what_starts_from_the_folder(first, corpus, tmp_path):
    small = {"batch_size": "4", "window": "8", "epochs": "1", "checks_per_epoch": "1"}
    stages = {"teacher.kind": "lstm", "teacher.dim": "4", "teacher.epochs": "1", "samples.tokens": "200"}
    stages |= {"samples.length": "8", "samples.prefix": "4", "samples.batch_size": "25", "teacher.batch_size": "4"}
    stages |= {f"finetune.{name}": value for name, value in small.items()} | {"teacher.window": "8"}
    plan = replace(from_it(first, split_states=2), recipe=preset("taught-ptb").with_changes({**small, **stages}))
    results = train_and_report(plan, corpus, tmp_path / "run", score_held_out=False)
    assert results.num_states == 32
    assert len(results.stages) == 3
    decided_by = json.loads((tmp_path / "run" / "mixture" / "stage.json").read_text())["decided_by"]
    assert decided_by["initial"]["split_states"] == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["about"]["initial"]["folder"] == first.name
    # Nothing is left to do, and the folder that it started from is not asked.
    again = train_and_report(read_plan(tmp_path / "run"), corpus, tmp_path / "run", resume=True, score_held_out=False)
    assert again.stopped == "finished"
