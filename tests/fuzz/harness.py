"""Runs cases in forked workers with limits of memory and time: a case that kills its worker is one outcome, not the end."""

from __future__ import annotations

import importlib
import importlib.util
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import TARGETS

CASES_A_WORKER = 250
"""Then a fresh one: what a library leaks must not look like a case that takes much."""
SECONDS_A_CASE = 20.0
MEMORY = 1 << 30
"""Bytes of address space that a worker may take beyond those it is forked with."""
BAD = ("crash", "wrong", "hang", "died")


@dataclass
class Report:
    """What came of the cases of one target."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Seed and what happened."""
    seconds: float = 0.0

    @property
    def num_cases(self) -> int:
        return self.outcomes.total()

    def lines(self) -> Iterator[str]:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.most_common())
        yield f"{self.target}: {self.num_cases:,} cases in {self.seconds:.0f} s: {counts}"
        for seed, told in self.bad:
            yield f"  {told}"
            yield f"    python -m tests.fuzz {self.target} --seed {seed} --cases 1 --show"


def present_targets() -> list[str]:
    return [name for name in TARGETS if importlib.util.find_spec(f"tests.fuzz.{name}") is not None]


def fuzz(target: str, cases: int, seed: int, *, show: bool = False) -> Report:
    """Cases `seed`, `seed + 1`, ... of a target. `show` lets workers print, tracebacks included."""
    module = importlib.import_module(f"tests.fuzz.{target}")
    report, begun = Report(target), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vlhmm-fuzz-") as folder:
        (Path(folder) / "material").mkdir()
        material = module.prepare(Path(folder) / "material")
        following = seed
        while following < seed + cases:
            last = min(seed + cases, following + CASES_A_WORKER)
            for number, outcome in _worker(
                module.run, material, range(following, last), Path(folder) / "scratch", show
            ):
                kind = outcome.partition(":")[0]
                report.outcomes[kind] += 1
                if kind in BAD:
                    report.bad.append((number, f"seed {number}: {outcome}"))
                following = number + 1
    report.seconds = time.monotonic() - begun
    return report


def _worker(
    run: Callable[[Any, int, Path], str], material: Any, seeds: range, scratch: Path, show: bool
) -> Iterator[tuple[int, str]]:
    """Outcomes of the seeds in order, up to the first that ends the worker."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            _run_cases(run, material, seeds, scratch, show, writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        yield from _watched(process, reading, seeds)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _watched(process: int, reading: int, seeds: range) -> Iterator[tuple[int, str]]:
    received = b""
    for seed in seeds:
        deadline = time.monotonic() + SECONDS_A_CASE
        while b"\n" not in received:
            ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                yield seed, f"hang: no answer in {SECONDS_A_CASE:.0f} s"
                return
            if not (block := os.read(reading, 1 << 16)):
                _, status = os.waitpid(process, 0)
                code = os.waitstatus_to_exitcode(status)
                yield seed, f"died: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
                return
            received += block
        outcome, _, received = received.partition(b"\n")
        yield seed, outcome.decode()


def _run_cases(
    run: Callable[[Any, int, Path], str], material: Any, seeds: range, scratch: Path, show: bool, writing: int
) -> None:
    if not show:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    # A core file of a process this size takes longer than a case.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    for seed in seeds:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        outcome = _one(run, material, seed, scratch, show)
        os.write(writing, outcome.encode("utf-8", "replace").replace(b"\n", b" ")[:2000] + b"\n")


def _one(run: Callable[[Any, int, Path], str], material: Any, seed: int, scratch: Path, show: bool) -> str:
    try:
        return run(material, seed, scratch)
    except BaseException as error:
        if show:
            traceback.print_exc()
        if isinstance(error, AssertionError):
            return f"wrong: {error}"
        if is_clear(error):
            return "refused"
        return f"crash: {type(error).__name__}: {error}"


def is_clear(error: BaseException) -> bool:
    """The project's own errors: a ValueError with its own words, or an OSError that names the file."""
    if isinstance(error, OSError):
        return error.filename is not None
    # Of libraries and of Python itself come subclasses that no user can make anything of.
    own = type(error) is ValueError or type(error).__module__.startswith("vlhmm.")
    return isinstance(error, ValueError) and own
