"""`vlhmm train` end to end: what it leaves behind, and that a run survives whatever ends it."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import SMALL, Run, same_weights, start_process
from filelock import FileLock

from vlhmm import load_corpus


def test_a_run_leaves_its_figures(model_dir: Path) -> None:
    results = json.loads((model_dir / "results.json").read_text())
    assert results["stopped"] == "finished"
    assert results["command"].startswith("vlhmm train ")
    assert results["perplexity"]["HMM"]["test"] < results["perplexity"]["unigram"]["test"]
    assert results["perplexity"]["unigram"]["test"] < results["perplexity"]["uniform"]["test"]
    assert results["seed"] == 0
    names = {path.name for path in model_dir.iterdir()}
    assert {"recipe.json", "blocks.tsv", "log.jsonl", "learning_curve.png", "model.safetensors"} <= names


def test_bits_per_byte_follow_from_perplexities(run: Run, text_file: Path, tmp_path: Path) -> None:
    options = (*SMALL, "--tokenizer", "bpe", "--set", "epochs=1", "--json")
    results, test = run("train", text_file, "--out", tmp_path / "run", *options).json, load_corpus(text_file).test
    assert list(results["bits_per_byte"]) == list(results["perplexity"])
    assert test.bytes is not None
    for name, bits in results["bits_per_byte"].items():
        assert bits["test"] == pytest.approx(math.log2(results["perplexity"][name]["test"]) * len(test) / test.bytes)
    assert results["comparison"].startswith("HMM ")


def test_words_have_no_bits_per_byte_but_a_rate_of_unknown_ones(run: Run, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        Path(f"{split}.txt").write_text("the cat sees the dog\n" * 40 + f"one {split}\n")
    options = ("--tokenizer", "words", *SMALL, "--set", "num_blocks=3")
    answer = run("train", ".", "--out", tmp_path / "words-run", *options)
    assert answer.status == 0, answer.err
    assert "unknown words: 0.8 % of the test tokens" in answer.out
    assert "no bits per byte: " in answer.out
    assert "HMM worse than Kneser-Ney" in answer.out or "HMM better than Kneser-Ney" in answer.out


def test_without_a_preset_the_recipe_follows_the_device(run: Run, text_file: Path) -> None:
    answer = run("train", text_file, "--out", "run", "--device", "cpu", "--dry-run", "--json", "--set", "dim=16")
    assert "preset cpu, chosen for a CPU, " in answer.err
    assert "--preset NAME" in answer.err
    recipe = answer.json["recipe"]
    assert recipe["model"]["dim"] == 16
    assert recipe["blocks"]["num_blocks"] <= answer.json["vocab_size"]
    assert answer.json["num_states"] < 2**15
    options = ("--preset", "default", "--set", "window=32")
    # As JSON: the sizes alone, where no step is timed.
    named = run("train", text_file, "--out", "run", "--device", "cpu", "--dry-run", "--json", *options)
    assert "chosen for" not in named.err
    assert named.json["num_states"] == 32_768


def test_dry_run_writes_nothing(run: Run, text_file: Path, tmp_path: Path) -> None:
    shown = run("train", text_file, "--out", tmp_path / "run", *SMALL, "--dry-run")
    assert shown.status == 0
    assert "24 in 6 blocks" in shown.out
    assert re.search(r"^time +about \d.*, by the time of a few steps$", shown.out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []
    plan = run("train", text_file, "--out", tmp_path / "run", *SMALL, "--dry-run", "--json").json
    assert plan["num_states"] == 24
    assert 0 < plan["estimated_bytes"] < plan["available_bytes"]
    assert plan["recipe"]["train"]["window"] == 16


def test_settings_come_from_preset_then_file_then_options(run: Run, text_file: Path) -> None:
    Path("mine.toml").write_text("[model]\ndim = 24\n[train]\nepochs = 5\nwindow = 8\n")
    options = ("--config", "mine.toml", "--set", "num_blocks=6", "--set", "window=16", "--seed", "7")
    recipe = run("train", text_file, "--out", "run", "--preset", "linear", *options, "--dry-run", "--json").json[
        "recipe"
    ]
    assert recipe["model"]["parameterization"] == "linear"
    assert recipe["model"]["dim"] == 24
    assert (recipe["train"]["epochs"], recipe["train"]["window"], recipe["train"]["seed"]) == (5, 16, 7)


def test_json_is_all_of_stdout(run: Run, text_file: Path, tmp_path: Path) -> None:
    answer = run("train", text_file, "--out", tmp_path / "run", *SMALL, "--set", "epochs=1", "--json")
    before_the_first_step = answer.err[: answer.err.index("valid perplexity")]
    assert " steps, epochs = 1, by the time of a few" in before_the_first_step
    assert "--max-seconds S" in before_the_first_step
    assert answer.json == json.loads((tmp_path / "run" / "results.json").read_text())
    assert "valid perplexity" in answer.err


def test_a_second_run_in_one_folder_is_refused(run: Run, text_file: Path, model_dir: Path) -> None:
    assert "--resume" in run("train", text_file, "--out", model_dir, *SMALL).error


def test_a_folder_in_use_is_refused(run: Run, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"):
        answer = run("train", text_file, "--out", tmp_path / "run", *SMALL)
    assert answer.status == 2
    assert "in use by another process" in answer.error


def test_resume_refuses_other_settings(run: Run, text_file: Path, model_dir: Path) -> None:
    answer = run("train", text_file, "--out", model_dir, "--resume", "--set", "dim=16")
    assert answer.status == 2
    assert "dim = 8, not 16" in answer.error


def test_resume_of_a_finished_run_changes_no_weights(run: Run, model_dir: Path) -> None:
    before = (model_dir / "model.safetensors").read_bytes()
    assert run("train", "--out", model_dir, "--resume").status == 0
    assert (model_dir / "model.safetensors").read_bytes() == before


def test_max_seconds_stops_and_resume_finishes(run: Run, text_file: Path, model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("train", text_file, "--out", folder, *SMALL)
    assert run(*options, "--max-seconds", 0).status == 0
    first = json.loads((folder / "results.json").read_text())
    assert first["stopped"] == "time"
    assert first["step"] < first["num_steps"]
    assert run("train", "--out", folder, "--resume").status == 0
    assert json.loads((folder / "results.json").read_text())["stopped"] == "finished"
    assert same_weights(folder, model_dir)


def test_missing_extras_are_named(run: Run, text_file: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    finished = shutil.copytree(model_dir, "finished")
    shown = run("train", "--out", finished, "--resume", "--json")
    assert shown.status == 0
    assert shown.json["learning_curve"] is None
    assert "vlhmm[plot]" in shown.err
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "vlhmm[tensorboard]" in run("train", text_file, "--out", "run", *SMALL, "--tensorboard").error


def test_resume_refuses_other_blocks(run: Run, text_file: Path, model_dir: Path) -> None:
    assert run("cluster", text_file, "--tokenizer", "words", "--blocks", 5, "--out", "other.tsv").status == 0
    assert "other blocks" in run("train", "--out", model_dir, "--resume", "--blocks", "other.tsv").error


LONG = (*SMALL, "--set", "epochs=12")
"""Long enough to be stopped in the middle."""


@pytest.fixture(scope="module")
def whole_run(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    process = start_process("train", text_file, "--out", folder, *LONG)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_a_stopped_run_resumes_to_the_same_weights(
    run: Run, text_file: Path, whole_run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "stopped"
    process = start_process("train", text_file, "--out", folder, *LONG)
    try:
        _wait_for_checks(folder / "log.jsonl", process)
        if number is signal.SIGKILL:
            refused = run("train", "--out", folder, "--resume")
            assert refused.status == 2
            assert "in use by another process" in refused.error
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert errors.strip().splitlines()[-1].startswith("stopped at step")
        assert "Traceback" not in errors
    else:
        assert process.returncode == -signal.SIGKILL
        assert not (folder / "results.json").exists()
    assert run("train", "--out", folder, "--resume").status == 0
    assert same_weights(folder, whole_run)
    assert (folder / "blocks.tsv").read_bytes() == (whole_run / "blocks.tsv").read_bytes()


def _wait_for_checks(log: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has been through two checks: then there is something to resume from."""
    for _ in range(6000):
        assert process.poll() is None, process.communicate()
        if log.exists() and log.read_text().count('"check"') >= 2:
            return
        time.sleep(0.01)
    raise AssertionError("the run made no two checks within a minute")


def test_a_run_starts_from_a_trained_model_and_splits_its_states(
    run: Run, model_dir: Path, text_file: Path, tmp_path: Path
) -> None:
    options = (
        "--init-from",
        model_dir,
        "--preset",
        "cpu",
        "--device",
        "cpu",
        "--set",
        "epochs=1",
        "--set",
        "batch_size=4",
        "--no-eval",
    )
    shown = run("train", text_file, "--out", tmp_path / "run", *options, "--split-states", 2, "--dry-run")
    assert shown.status == 0, shown.err
    assert f"the weights of {model_dir}, each block in 1, each state in 2, noise 0" in " ".join(shown.out.split())
    ran = run("train", text_file, "--out", tmp_path / "run", *options, "--split-states", 2, "--json")
    assert ran.json["num_states"] == 2 * json.loads((model_dir / "results.json").read_text())["num_states"]
    other = run("train", "--out", tmp_path / "run", "--resume", "--device", "cpu", "--split-states", 3)
    assert "was started with --split-states 2, not 3" in other.error
    other = run("train", text_file, "--out", tmp_path / "other", *options, "--set", "dim=3")
    assert "dim = 3, but the model in" in other.error
    other = run("train", text_file, "--out", tmp_path / "other", "--split-states", 2)
    assert "name it with --init-from" in other.error
