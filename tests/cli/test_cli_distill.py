"""`vlhmm distill` from a teacher on disk to a model folder."""

from pathlib import Path

import pytest
from cli_helpers import Run, start_process
from tiny_teacher import write_tiny_teacher

pytest.importorskip("transformers")

SMALL = [
    *("--states", 12, "--tokens", 2000, "--max-tokens", 20, "--batch-size", 32, "--device", "cpu"),
    *("--set", "epochs=4", "--set", "batch_size=8", "--set", "dim=16"),
]


@pytest.fixture(scope="session")
def teacher_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli-teacher")
    write_tiny_teacher(folder, chat=True)
    return folder


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("the cat\n\nthe dog\n", encoding="utf-8")
    return path


def test_distill_leaves_a_model_that_other_commands_read(run: Run, teacher_dir: Path, prompts: Path) -> None:
    first = run("distill", teacher_dir, "--out", "run", "--prompts", prompts, *SMALL)
    assert first.status == 0, first.err
    # No bars where no terminal is.
    assert "%" not in first.err
    assert "teacher" in first.out
    assert "unigram" in first.out
    again = run("distill", teacher_dir, "--out", "run", "--prompts", prompts, *SMALL, "--json")
    assert again.status == 0, again.err
    figures = again.json["held_out"]
    assert figures["teacher"] < figures["hmm"] < figures["unigram"]
    assert run("score", "run", "the cat sees the dog").status == 0
    assert run("train", "--out", "run", "--resume").status == 0


def test_samples_serve_several_models(run: Run, teacher_dir: Path, tmp_path: Path) -> None:
    assert run("distill", teacher_dir, "--out", "small", "--samples", "text", *SMALL).status == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "text" / "shards").iterdir()}
    other = run("distill", teacher_dir, "--out", "large", "--samples", "text", *SMALL, "--states", 20, "--json")
    assert other.json["num_states"] == 20
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "text" / "shards").iterdir()} == before
    plain = run(
        "train", "text", "--out", "plain", "--preset", "distill", *SMALL[-6:], "--set", "window=20", "--dry-run"
    )
    assert plain.status == 0, plain.err


def test_errors_are_one_line(run: Run, teacher_dir: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert "0 prompts" in run("distill", teacher_dir, "--out", "a", "--prompts", empty, *SMALL).error
    assert "0 tokens are to be drawn" in run("distill", teacher_dir, "--out", "b", *SMALL, "--tokens", 0).error
    assert "--max-tokens" in run("distill", teacher_dir, "--out", "c", *SMALL, "--set", "window=10").error
    assert "leave 90 for training" in run("distill", teacher_dir, "--out", "c", *SMALL, "--tokens", 100).error
    assert "not .gguf" in run("distill", empty, "--out", "d", *SMALL).error
    assert "states_per_block is 0" in run("distill", teacher_dir, "--out", "e", *SMALL, "--states", 0).error


def test_a_second_process_cannot_draw_into_the_same_folder(teacher_dir: Path, tmp_path: Path, run: Run) -> None:
    from filelock import FileLock

    (tmp_path / "text").mkdir()
    with FileLock(tmp_path / "text" / ".lock"):
        process = start_process("distill", teacher_dir, "--out", "x", "--samples", "text", *SMALL, cwd=tmp_path)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "in use by another process" in err
