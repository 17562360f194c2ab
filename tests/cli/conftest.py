"""A small model trained by the command line itself, and a way to run commands in this process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_helpers import SMALL, Ran, Run, write_text

from experiments.cli import commands
from vlhmm.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs one command in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLHMM_DEBUG", raising=False)

    return partial(_run_command, capsys, monkeypatch, main)


@pytest.fixture
def run_experiments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`python -m experiments`, likewise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLHMM_DEBUG", raising=False)
    return partial(_run_command, capsys, monkeypatch, lambda: main(commands(), "python -m experiments"))


def _run_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    entry_point: Callable[[], int],
    *arguments: object,
) -> Ran:
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["vlhmm", *(str(argument) for argument in arguments)])
    status = entry_point()
    captured = capsys.readouterr()
    return Ran(status, captured.out, captured.err)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "small.txt"
    write_text(path)
    return path


@pytest.fixture(scope="session")
def model_dir(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vlhmm", "train", str(text_file), "--out", str(folder), *SMALL])
        assert main() == 0
    return folder


@pytest.fixture(autouse=True)
def no_width_given(monkeypatch: pytest.MonkeyPatch) -> None:
    # Test runners that work in parallel set it for their own output.
    monkeypatch.delenv("COLUMNS", raising=False)
