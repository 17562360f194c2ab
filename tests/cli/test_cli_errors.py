"""Whatever is wrong: one line that says so, and a status."""

import shutil
import warnings
from pathlib import Path

import pytest
from cli_helpers import SMALL, Run, start_process


def test_a_missing_folder_is_named(run: Run, tmp_path: Path) -> None:
    answer = run("score", tmp_path / "nowhere", "text")
    assert answer.status == 2
    assert "nowhere" in answer.error


def test_a_model_without_checksums_is_told_of_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(__file__).parents[1] / "first_edition" / "neural"
    with warnings.catch_warnings():
        # As in a program: test runs make errors of warnings.
        warnings.resetwarnings()
        shown = run("score", folder, "the cat", "--json")
        assert shown.status == 0
        assert shown.json["tokens"]
        (notice,) = shown.err.splitlines()
        assert notice.startswith(f"warning: {folder / 'model.safetensors'} has no checksum")
        monkeypatch.setenv("VLHMM_VERIFY", "0")
        assert run("score", folder, "the cat", "--json").err == ""


def test_a_truncated_model_is_refused(run: Run, model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    answer = run("info", broken)
    assert answer.status == 2
    assert "cut short" in answer.error


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--set", "epoch=3"), "did you mean 'epochs'"),
        (("--set", "epochs"), "KEY=VALUE"),
        (("--set", "epochs=many"), "must be of type int"),
        (("--preset", "dem"), "did you mean 'demo'"),
        (("--config", "no.toml"), "no.toml"),
        (("--max-seconds", "soon"), "--max-seconds"),
        (("--max-seconds", "-1"), "--max-seconds"),
        (("--set", "states_per_block=1000000000000"), "make states_per_block, num_blocks or dim smaller"),
        (("--set", "batch_size=100000"), "make batch_size or window smaller"),
    ],
)
def test_bad_options_are_refused(run: Run, text_file: Path, options: tuple[str, ...], expected: str) -> None:
    answer = run("train", text_file, "--out", "run", "--dry-run", *SMALL, *options)
    assert answer.status == 2
    assert expected in answer.error
    assert not Path("run").exists()


def test_a_bad_config_file_is_refused(run: Run, text_file: Path) -> None:
    for content, expected in (("[train]\nepoch = 1", "'epochs'"), ("dim = 3", "outside"), ("[[", "not TOML")):
        Path("bad.toml").write_text(content)
        assert expected in run("train", text_file, "--out", "run", "--dry-run", "--config", "bad.toml").error


def test_cuda_is_refused_where_there_is_none(run: Run, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "--device cpu" in run("train", text_file, "--out", "run", "--device", "cuda").error


def test_a_file_is_no_folder_for_a_run(run: Run, text_file: Path) -> None:
    assert "name a folder" in run("train", text_file, "--out", text_file, *SMALL).error


def test_a_picture_is_refused_or_its_folder_made_before_anything_is_computed(run: Run, model_dir: Path) -> None:
    pytest.importorskip("matplotlib")
    for command in (("posterior", model_dir, "the file"), ("inspect", model_dir, "--memory", "0")):
        for name in ("states", "states.txt"):
            assert "let it end in .png" in run(*command, "--plot", name).error
        assert run(*command, "--plot", "new/folder/states.png").status == 0
        Path("new/folder/states.png").unlink()


def test_an_unknown_corpus_is_refused(run: Run) -> None:
    assert "wikitext-2" in run("train", "wikitext2", "--out", "run").error


def test_divergence_has_a_status_of_its_own(run: Run, text_file: Path) -> None:
    answer = run("train", text_file, "--out", "run", *SMALL, "--set", "learning_rate=1e6", "--set", "clip=0")
    assert answer.status == 1
    assert "error: training diverged at step" in answer.err
    assert answer.out == ""


def test_a_defect_of_ours_keeps_its_traceback(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise KeyError("defect")

    monkeypatch.setattr("vlhmm.lm.load", broken)
    with pytest.raises(KeyError):
        run("info", model_dir)


def test_debug_shows_the_traceback(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLHMM_DEBUG", "1")
    with pytest.raises(ValueError):
        run("info", tmp_path / "nowhere")


def test_a_closed_pipe_is_no_crash(model_dir: Path) -> None:
    with start_process("generate", model_dir, "--num", 20_000, "--max-tokens", 3) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
