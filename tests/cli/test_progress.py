"""Progress where there is no terminal."""

import pytest

from vlhmm.progress_bar import progress_bar


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("training", 200) as shown:
        shown.update(2, note="too early for a line")
        monkeypatch.setattr("vlhmm.progress_bar.LINE_SECONDS", 0.0)
        shown.update(50, note="loss 3.2")
    assert capsys.readouterr().err == "training 25% loss 3.2\n"
