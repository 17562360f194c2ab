"""The snippets of docs/queries.md run as they are printed, on a small model."""

import re
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm

SNIPPETS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / "queries.md").read_text(), flags=re.S
)


@pytest.mark.parametrize("number", range(2))
def test_a_snippet_runs(number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tiny_corpus(50)
    torch.manual_seed(0)
    lm = vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer)
    monkeypatch.setattr(vlhmm, "load", lambda folder: lm)
    exec(compile(SNIPPETS[number], f"snippet {number}", "exec"), {})
    assert "nan" not in capsys.readouterr().out


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 2
