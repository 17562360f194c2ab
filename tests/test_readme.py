"""The README's snippets run as they are printed."""

import re
from pathlib import Path

import pytest

SNIPPETS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), flags=re.S)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {})


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 2
