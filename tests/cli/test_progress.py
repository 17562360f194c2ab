"""Progress on a terminal and where there is none."""

import io
import re
import sys
import time

import pytest

from vlhmm.progress import Progress
from vlhmm.progress_bar import Steps, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("training", 200) as shown:
        shown.update(2, note="too early for a line")
        monkeypatch.setattr("vlhmm.progress_bar.LINE_SECONDS", 0.0)
        shown.update(50, note="loss 3.2")
    assert capsys.readouterr().err == "training 25% loss 3.2\n"


@pytest.mark.parametrize(
    ("done", "total", "seconds_left", "shown_last"),
    [
        # A billion parts, and at most 20 of them a second: the limit comes first.
        (2, 10**9, 7_000.0, r"1:5\d:\d\d left"),
        # All but one of a million parts is done: the limit is far away.
        (10**6 - 1, 10**6, 7_000.0, r"00:0\d left"),
        (2, 10**9, None, r"\d{2,}:\d\d:\d\d left"),
    ],
    ids=["limit first", "end first", "no limit"],
)
def test_the_time_left_is_that_to_the_end_or_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, done: int, total: int, seconds_left: float | None, shown_last: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("drawing", None) as bar:
        show = Steps(bar, "drawing")
        # A speed is known once two steps are made.
        show(Progress("drawing", done - 1, total, seconds_left=seconds_left))
        time.sleep(0.05)
        show(Progress("drawing", done, total, seconds_left=seconds_left))
    assert re.fullmatch(shown_last, re.findall(r"\S+ left", terminal.getvalue())[-1])
