"""Ctrl-C is answered at once, whatever the process is doing; a second one ends it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import vlhmm
from vlhmm.interrupts import announced_interrupts, stop_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

BEGIN = "print('begun', file=sys.stderr, flush=True)"


@contextmanager
def _begun(*program: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(vlhmm.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(program)], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_first_is_announced_and_the_second_ends_what_python_cannot() -> None:
    program = [
        "import hashlib, sys, threading",
        "from vlhmm.interrupts import *",
        "with announced_interrupts():",
        # When the main thread is where no handler in Python is called: minutes in C, without the interpreter's lock.
        f"  threading.Timer(0.5, lambda: {BEGIN}).start()",
        "  hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
    ]
    with _begun(*program) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "stopping... (Ctrl-C again: abort)\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.readline() == "aborted\n"


def test_within_a_step_the_announcement_says_so_and_the_step_is_finished() -> None:
    program = [
        "import hashlib, sys, threading",
        "from vlhmm.interrupts import *",
        "with announced_interrupts(), stop_signals() as stop:",
        # Said while the step runs: before it, there would be no step to finish.
        f"  threading.Timer(0.2, lambda: {BEGIN}).start()",
        "  while not stop.is_set():",
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 3_000_000)",
        "print('finished', file=sys.stderr)",
    ]
    with _begun(*program) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "stopping after this step... (Ctrl-C again: abort)\n"
        assert process.stderr.readline() == "finished\n"
        assert process.wait(timeout=60) == 0


def test_what_stops_at_once_is_not_announced() -> None:
    program = [
        "import sys, time",
        "from vlhmm.interrupts import *",
        "try:",
        "  with announced_interrupts():",
        f"    {BEGIN}",
        "    time.sleep(600)",
        "except KeyboardInterrupt:",
        "  pass",
    ]
    with _begun(*program) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_signals_of_someone_else_are_left_to_them() -> None:
    program = [
        "import signal, sys, time",
        "from vlhmm.interrupts import *",
        "def hear(number, frame):",
        "  print('heard', file=sys.stderr, flush=True)",
        "signal.signal(signal.SIGINT, hear)",
        "with announced_interrupts():",
        f"  {BEGIN}",
        "  time.sleep(600)",
    ]
    with _begun(*program) as process:
        assert process.stderr is not None
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "heard\n"


def test_handlers_and_threads_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), threading.active_count()
    with announced_interrupts(), stop_signals() as request:
        assert signal.getsignal(signal.SIGINT) is request
        signal.raise_signal(signal.SIGINT)
        assert request.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), threading.active_count()) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_hear_no_signals() -> None:
    heard = []

    def work() -> None:
        with announced_interrupts(), stop_signals() as request:
            heard.append(request.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]
