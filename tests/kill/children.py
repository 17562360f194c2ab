"""Commands in child processes that are forked, not started: they have all modules already, and a kill costs no import."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

KILL = -1
"""Instead of an error's number: the process is killed."""


@dataclass(frozen=True)
class Fault:
    """At the so manieth operation on files below the folder: an errno, or KILL."""

    operation: int
    error: int


@dataclass(frozen=True)
class Ended:
    status: int
    """That of the command; negative: the signal that ended it."""
    err: str
    operations: int
    """On files below the folder; 0 where the process was killed, or nobody counts."""
    failed: str
    """The operation that was made to fail."""
    seconds: float


def counter() -> ctypes.CDLL | None:
    """The library that counts operations, where it was preloaded."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "faults_arm"):
        return None
    library.faults_count.restype = ctypes.c_long
    library.faults_last.restype = ctypes.c_char_p
    return library


def run(
    arguments: list[str], folder: Path, report: Path, fault: Fault | None = None, kill_after: float | None = None
) -> Ended:
    """`vlhmm arguments` with `folder` as its working directory; killed after so many seconds, if given."""
    begun = time.monotonic()
    report.write_text("")
    child = os.fork()
    if child == 0:
        _command(arguments, folder, report, fault)
    if kill_after is not None:
        while time.monotonic() - begun < kill_after and not os.waitid(
            os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.001)
        # Its id is ours until it is waited for.
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counted, _, failed = report.read_text().partition(" ")
    err = report.with_suffix(".err").read_text(errors="replace")
    return Ended(status, err, int(counted or 0), failed, time.monotonic() - begun)


def _command(arguments: list[str], folder: Path, report: Path, fault: Fault | None) -> None:
    """The rest of a child's life."""
    status = 70
    try:
        os.chdir(folder)
        output = os.open(report.with_suffix(".err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, file in enumerate((nothing, nothing, output)):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.pop("VLHMM_DEBUG", None)
        sys.argv = ["vlhmm", *arguments]
        from vlhmm.cli import main

        library = counter()
        if library is not None:
            wanted = fault or Fault(0, 0)
            library.faults_arm(os.fsencode(folder), wanted.operation, wanted.error)
        status = main()
        sys.stderr.flush()
        if library is not None:
            report.write_text(f"{library.faults_count()} {library.faults_last().decode()}")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
