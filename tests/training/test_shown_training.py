"""`vlhmm.train` on a terminal, in a pipe and told to be silent."""

import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tiny import tiny_corpus, tiny_model

import vlhmm

CORPUS = tiny_corpus(60)
SETTINGS = vlhmm.TrainSettings(epochs=2, batch_size=4, window=16, checks_per_epoch=1)


@contextmanager
def read(source: int) -> Iterator[bytearray]:
    """What arrives there until the other end is closed."""
    received = bytearray()

    def receive() -> None:
        try:
            while part := os.read(source, 1 << 12):
                received.extend(part)
        # A pseudo-terminal whose other end is closed.
        except OSError:
            pass

    reader = threading.Thread(target=receive)
    reader.start()
    yield received
    reader.join()
    os.close(source)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a training writes to stderr, which is a pseudo-terminal or a pipe."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    def train(place: Callable[[], tuple[int, int]], progress: bool | None) -> str:
        source, target = place()
        # In this order, so that the reader sees the end once the stream is closed.
        with read(source) as received, os.fdopen(target, "w", encoding="utf-8") as stream:
            assert stream.isatty() == (place is pty.openpty)
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", stream)
                vlhmm.train(tiny_model(CORPUS), CORPUS, SETTINGS, progress=progress)
        return received.decode()

    return train


def test_a_terminal_gets_a_bar_and_a_line_for_each_check(
    trained: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    shown = trained(pty.openpty, None)
    assert shown.count("valid perplexity") == 2
    for part in ("epoch 2/2", "100%", "tokens/s", "left"):
        assert part in shown
    # The bar is gone at the end, and the cursor is back.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rindex("\x1b[2K") > shown.rindex("tokens/s")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("place", "progress"), [(pty.openpty, False), (os.pipe, None), (os.pipe, False)])
def test_nothing_is_shown_in_a_pipe_or_where_it_is_turned_off(
    trained: Callable[..., str], place: Callable[[], tuple[int, int]], progress: bool | None
) -> None:
    assert trained(place, progress) == ""


def test_a_pipe_that_asks_for_progress_gets_lines_without_a_bar(trained: Callable[..., str]) -> None:
    lines = trained(os.pipe, True).splitlines()
    assert len(lines) == 2
    assert all("valid perplexity" in line and "\x1b" not in line for line in lines)
