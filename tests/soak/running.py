"""Cases in one process or several, and what came of them."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from tests.soak.cases import Case, draw_case
from tests.soak.checks import CHECKS

DTYPES = {"float32": torch.float32, "float64": torch.float64}
PRECISIONS = ("highest", "tf32", "bf16")
MAX_REASON = 300


@dataclass
class Counts:
    """Of some cases."""

    cases: Counter[str] = field(default_factory=Counter)
    """By what the answers are held to, a key of `TOLERANCE`."""
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By query, outcome and tolerance."""
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.cases += other.cases
        self.outcomes += other.outcomes
        self.seconds += other.seconds
        self.failures += other.failures


def run(options: argparse.Namespace) -> Iterator[Counts]:
    """The cases in as many processes: process p of P has seeds p, p + P, ..."""
    if options.processes == 1:
        yield from _cases_of(options, 0)
        return
    # Forked processes cannot use a GPU.
    context = multiprocessing.get_context("spawn")
    running: list[tuple[Any, Connection]] = []
    for number in range(options.processes):
        reading, writing = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(options, number, writing), daemon=True)
        process.start()
        writing.close()
        running.append((process, reading))
    open_ends = [reading for _, reading in running]
    while open_ends:
        for reading in wait(open_ends):
            try:
                yield reading.recv()  # type: ignore[union-attr]
            except EOFError:
                open_ends.remove(reading)  # type: ignore[arg-type]
    for process, _ in running:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a process ended with status {process.exitcode}: its cases are missing")


def _send(options: argparse.Namespace, number: int, writing: Connection) -> None:
    for part in _cases_of(options, number):
        writing.send(part)
    writing.close()


def _cases_of(options: argparse.Namespace, number: int) -> Iterator[Counts]:
    torch.set_num_threads(1)
    begun = time.monotonic()
    for seed in range(options.seed + number, options.seed + options.cases, options.processes):
        if time.monotonic() - begun > options.seconds:
            return
        yield _one(options, seed)


def _one(options: argparse.Namespace, seed: int) -> Counts:
    counts = Counts()
    dtype = options.dtype or list(DTYPES)[seed % 2]
    precision = options.precision
    if precision == "turns":
        precision = PRECISIONS[seed // 2 % 3]
    case = draw_case(seed, DTYPES[dtype], options.device, precision)
    counts.cases[case.held_to] += 1
    for name in _asked(options, seed):
        began = time.perf_counter()
        outcome, reason = _outcome(CHECKS[name], case)
        counts.seconds[name] += time.perf_counter() - began
        counts.outcomes[name, outcome, case.held_to] += 1
        if outcome == "right":
            continue
        command = f"python -m tests.soak --cases 1 --seed {seed} --dtype {dtype} --query {name}"
        if options.device != "cpu":
            command += f" --device {options.device} --precision {precision}"
        counts.failures.append(f"{outcome}: {case.kind}, window {case.window}: {reason}\n  {command}")
    return counts


def _asked(options: argparse.Namespace, seed: int) -> list[str]:
    """The queries of one case: all, or as many as are wanted, by turns."""
    names = options.query or list(CHECKS)
    if options.queries is None or options.queries >= len(names):
        return names
    # Seeds are of a type of numbers by turns too: a turn of queries is done with both.
    first = (seed // 2) * options.queries
    return [names[place % len(names)] for place in range(first, first + options.queries)]


def _outcome(check: Callable[[Case], None], case: Case) -> tuple[str, str]:
    with np.errstate(divide="ignore"):
        try:
            check(case)
        except AssertionError as error:
            return "wrong", " ".join(str(error).split())[:MAX_REASON]
        except Exception as error:
            return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON]}"
    return "right", ""
