"""`vlhmm distill` from a teacher on disk to a model folder."""

from pathlib import Path

import pytest
from cli_helpers import Run, start_process, write_text
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
    assert "warning" not in first.err
    again = run("distill", teacher_dir, "--out", "run", "--prompts", prompts, *SMALL, "--json")
    assert again.status == 0, again.err
    figures = again.json["held_out"]
    assert figures["teacher"] < figures["hmm"] < figures["unigram"]
    assert run("score", "run", "the cat sees the dog").status == 0
    assert run("train", "--out", "run", "--resume").status == 0


def test_an_hmm_no_better_than_a_unigram_model_is_warned_of(run: Run, teacher_dir: Path) -> None:
    # Training in name only: the words stay about equally likely.
    ran = run(
        "distill", teacher_dir, "--out", "run", *SMALL, "--set", "epochs=1", "--set", "learning_rate=1e-9", "--json"
    )
    assert ran.status == 0, ran.err
    figures = ran.json["held_out"]
    assert figures["hmm"] > figures["unigram"]
    (warning,) = [line for line in ran.err.splitlines() if "warning" in line]
    for part in (f"{figures['hmm']:,.1f}", f"{figures['unigram']:,.1f}", "--tokens", "epochs=N"):
        assert part in warning


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


def test_states_may_be_given_by_the_teachers_vectors(run: Run, teacher_dir: Path) -> None:
    ran = run("distill", teacher_dir, "--out", "lvd", *SMALL, "--lvd", "--compare", "--json")
    assert ran.status == 0, ran.err
    assert "12 states from the vectors of" in ran.err
    for figures in (ran.json["held_out"], ran.json["plain"]["held_out"]):
        assert figures["teacher"] < figures["hmm"] < figures["unigram"]
    # Once p(x, z) is over, the run is like any other.
    assert run("train", "--out", "lvd", "--resume").status == 0


def test_a_text_is_read_by_a_teacher(run: Run, teacher_dir: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", 120)
    small = [*("--states", 6, "--device", "cpu", "--set", "epochs=2", "--set", "batch_size=4", "--set", "dim=8")]
    small += ["--set", "window=16"]
    own = ["--teacher-tokens", 1000, "--tokenizer", "words", "--out", "own"]
    ran = run("distill", "--text", "text.txt", *own, *small, "--compare")
    assert ran.status == 0, ran.err
    assert "HMM, no states given" in ran.out
    assert "Kneser-Ney" in ran.out
    again = run("distill", "--text", "text.txt", *own, *small, "--json")
    assert again.status == 0, again.err
    assert again.json["perplexity"]["HMM"]["test"] < again.json["perplexity"]["unigram"]["test"]
    # The teacher that was trained can be named, and so can one of transformers, whose tokens the HMM then has.
    named = run("distill", tmp_path / "own" / "teacher", "--text", "text.txt", "--out", "named", *small, "--json")
    assert named.json["perplexity"] == again.json["perplexity"]
    other = run("distill", teacher_dir, "--text", "text.txt", "--out", "other", *small)
    assert other.status == 0, other.err
    assert "313 subwords" in other.err


def test_a_prepared_text_has_the_teachers_tokens(run: Run, teacher_dir: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", 120)
    assert run("prepare", "text.txt", "--out", "words").status == 0
    refused = run("distill", teacher_dir, "--text", "words", "--out", "a", "--device", "cpu").error
    assert "and they differ: prepare the text with the teacher's own tokenizer" in refused


def test_errors_are_one_line(run: Run, teacher_dir: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert "0 prompts" in run("distill", teacher_dir, "--out", "a", "--prompts", empty, *SMALL).error
    assert "0 tokens are to be drawn" in run("distill", teacher_dir, "--out", "b", *SMALL, "--tokens", 0).error
    assert "--max-tokens" in run("distill", teacher_dir, "--out", "c", *SMALL, "--set", "window=10").error
    assert "leave 90 for training" in run("distill", teacher_dir, "--out", "c", *SMALL, "--tokens", 100).error
    assert "not .gguf" in run("distill", empty, "--out", "d", *SMALL).error
    assert "states_per_block is 0" in run("distill", teacher_dir, "--out", "e", *SMALL, "--states", 0).error
    assert "no TEACHER" in run("distill", "--out", "e", *SMALL).error
    assert "name that by --text" in run("distill", teacher_dir, "--out", "e", "--teacher-tokens", 10).error
    assert "needs one teacher" in run("distill", "--text", empty, "--out", "e").error
    assert "`vlhmm train`" in run("distill", teacher_dir, "--text", empty, "--no-lvd", "--out", "e").error
    write_text(tmp_path / "short.txt", 40)
    short = run("distill", "--text", "short.txt", "--teacher-tokens", 1000, "--out", "e", "--device", "cpu")
    assert "needs 12,800" in short.error
    assert not (tmp_path / "e").exists()
    assert "are for --lvd" in run("distill", teacher_dir, "--out", "e", *SMALL, "--compare").error
    few = run("distill", teacher_dir, "--out", "e", *SMALL, "--lvd", "--cluster-tokens", 12)
    assert "cannot make 12 clusters" in few.error


def test_a_second_process_cannot_draw_into_the_same_folder(teacher_dir: Path, tmp_path: Path, run: Run) -> None:
    from filelock import FileLock

    (tmp_path / "text").mkdir()
    with FileLock(tmp_path / "text" / ".lock"):
        process = start_process("distill", teacher_dir, "--out", "x", "--samples", "text", *SMALL, cwd=tmp_path)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "in use by another process" in err
