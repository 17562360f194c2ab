"""Ctrl-C: heard at once, also while a long operation runs outside of Python; obeyed where nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

AFTER_STEP, STOPPING = "stopping after this step...", "stopping..."
HINT = " (Ctrl-C again: abort)"
QUIET_SECONDS = 0.3
"""Whatever stops sooner needs no announcement."""
ABORT_SECONDS = 1.0
"""What Python has not ended so long after a second Ctrl-C is ended without it."""
INTERRUPTED = 130


class StopRequest:
    """A signal handler that asks a loop to stop after its step; the second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self._asked.set()

    def is_set(self) -> bool:
        return self._asked.is_set()


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask the loop to stop after its step; a second one ends it at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def announced_interrupts() -> Iterator[None]:
    """Answers Ctrl-C on stderr in the moment it is typed, and lets the second one end the process in any case.

    A handler in Python has to wait until the main thread is back from, say, a product of matrices; the system tells this thread
    at once. Signals that someone else handles are left to them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    if before != -1:
        # An event loop of this program listens already.
        signal.set_wakeup_fd(before)
        told.close()
    listener = threading.Thread(target=_listen, args=(heard,), name="interrupts", daemon=True)
    listener.start()
    try:
        yield
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)
            told.close()
        listener.join()
        heard.close()


def _listen(heard: socket.socket) -> None:
    """Until the other end is closed, which is when all has stopped."""
    count = 0
    while numbers := heard.recv(1):
        handler = signal.getsignal(signal.SIGINT)
        after_step = isinstance(handler, StopRequest)
        if numbers[0] != signal.SIGINT or not (after_step or handler is signal.default_int_handler):
            continue
        count += 1
        if count > 1:
            _end_unless_closed(heard)
            return
        if after_step or not _closed_within(heard, QUIET_SECONDS):
            _say((AFTER_STEP if after_step else STOPPING) + HINT)


def _closed_within(heard: socket.socket, seconds: float) -> bool:
    heard.settimeout(seconds)
    try:
        # What is there is left there, for the next reading.
        return not heard.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        heard.settimeout(None)


def _end_unless_closed(heard: socket.socket) -> None:
    heard.settimeout(ABORT_SECONDS)
    try:
        while heard.recv(1):
            pass
    except TimeoutError:
        _say("aborted", shown_cursor=True)
        os._exit(INTERRUPTED)


def _say(text: str, *, shown_cursor: bool = False) -> None:
    """By the file itself: the main thread may be in the middle of a line of its own. Of the ranks of torchrun the first alone.

    On a terminal the line takes the place of a progress bar, which is drawn anew below it.
    """
    stream = sys.__stderr__
    if stream is None or os.environ.get("RANK", "0") != "0":
        return
    with suppress(OSError, ValueError):
        terminal = stream.isatty()
        line = f"\r\x1b[2K{text}\n" if terminal else f"{text}\n"
        os.write(stream.fileno(), (line + "\x1b[?25h" * (terminal and shown_cursor)).encode())
