"""`vlhmm inspect`: the same figures as JSON, as tables and as a picture."""

import shutil
from pathlib import Path

import pytest
from cli_helpers import Run

SECTIONS = ("tokens known", "place in line", "training count", "as if equal", "leads to")


def test_inspect_reads_the_corpus_of_training(run: Run, model_dir: Path) -> None:
    answer = run("inspect", model_dir, "--memory", 8, "--json").json
    assert answer["text"].startswith("valid of ")
    assert answer["usage"]["num_states"] == 24
    assert len(answer["blocks"]) == 6
    assert len(answer["memory"]["perplexity"]) == 9
    assert answer["smoothed_entropy"] <= answer["filtered_entropy"]


def test_inspect_agrees_with_eval(run: Run, model_dir: Path, text_file: Path) -> None:
    inspected = run("inspect", model_dir, text_file, "--memory", 0, "--json").json
    evaluated = run("eval", model_dir, text_file, "--json").json
    assert inspected["perplexity"] == pytest.approx(evaluated["perplexity"], rel=1e-5)
    assert inspected["num_tokens"] == evaluated["num_tokens"]
    # A file of text has no training text to count in.
    assert inspected["by_frequency"] == []
    assert inspected["memory"] is None


def test_inspect_shows_every_section_and_draws_a_picture(run: Run, model_dir: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = run("inspect", model_dir, "--memory", 8, "--plot", "inside.png")
    assert shown.status == 0
    assert all(section in shown.out for section in SECTIONS)
    assert "inside.png" in shown.out
    assert Path("inside.png").read_bytes().startswith(b"\x89PNG")


def test_a_beginning_can_be_asked_for(run: Run, model_dir: Path) -> None:
    answer = run("inspect", model_dir, "--tokens", 40, "--memory", 4, "--json").json
    assert answer["num_tokens"] == 40
    assert answer["text"].startswith("the beginning of ")


def test_what_cannot_be_inspected_is_said_in_one_line(run: Run, model_dir: Path, tmp_path: Path) -> None:
    assert "contexts of 64 need at least 65" in run("inspect", model_dir, "--tokens", 40).error
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare)
    (bare / "recipe.json").unlink()
    assert "name a corpus or a text file" in run("inspect", bare).error
