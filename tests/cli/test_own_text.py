"""From a text file to a model that is scored, sampled, shipped and compared, each command in a process of its own."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import start_process

from vlhmm import load

ENGLISH = Path(__file__).parents[2] / "LICENSE"
"""Prose with capitals, quotes, brackets and numbers."""
FEW_STEPS = [
    *("--preset", "demo", "--device", "cpu", "--set", "num_blocks=6", "--set", "states_per_block=4", "--set", "dim=8"),
    *("--set", "batch_size=4", "--set", "window=32", "--set", "epochs=1", "--set", "checks_per_epoch=1"),
]
UNSEEN = 'The "Model" of (Figure 3) costs 12 € in Málaga.'
"""Half of its words are not in the text."""


@pytest.fixture
def vlhmm(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Runs a command that must succeed, with nothing but pipes around it; what it printed."""

    def run(*arguments: object) -> tuple[str, str]:
        process = start_process(*arguments, cwd=tmp_path)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out, err

    return run


@pytest.mark.slow
def test_the_commands_for_a_text_of_ones_own(vlhmm: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    shutil.copy(ENGLISH, tmp_path / "mytext.txt")

    shown, told = vlhmm("train", "mytext.txt", "--out", "one", *FEW_STEPS)
    assert "subwords" in told
    assert "about" in told
    for name in ("unigram", "Kneser-Ney", "HMM", "bits per byte", "vlhmm export one"):
        assert name in shown.replace("python -m vlhmm", "vlhmm"), shown
    vlhmm("train", "mytext.txt", "--out", "two", *FEW_STEPS, "--seed", 1)

    figures = json.loads(vlhmm("eval", "one", "--json")[0])
    assert 1 < figures["bits_per_byte"] < 8
    assert figures["num_unknown"] == 0

    scored = vlhmm("score", "one", UNSEEN, "--json")[0]
    assert math.isfinite(json.loads(scored)["log_prob"])
    assert "<unk>" not in scored

    texts = vlhmm("generate", "one", "--prompt", "You may", "--num", 3, "--max-tokens", 12, "--seed", 1)[0]
    assert len(texts.splitlines()) == 3
    assert all(text.startswith("You may") for text in texts.splitlines())
    assert "<unk>" not in texts

    filled = vlhmm("infill", "one", "the terms of ___ License", "--num", 2, "--seed", 1)[0]
    assert "the terms of" in filled
    assert "<unk>" not in filled

    vlhmm("export", "one", "--out", "shipped")
    assert load(tmp_path / "shipped").score(UNSEEN).log_prob == pytest.approx(json.loads(scored)["log_prob"], rel=1e-6)

    found = json.loads(vlhmm("compare", "one", "two", "--samples", 100, "--json")[0])
    assert found["settings"] == {"train.seed": [0, 1]}
    (test,) = found["tests"]
    assert test["low"] <= test["difference"] <= test["high"]
    compared = found["runs"][0]["evaluation"]
    assert {name: figures[name] for name in compared} == compared
