"""Kills and failing writes at random places; after each the command goes on, and must end as if nothing had happened."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.kill.children import KILL, Ended, Fault, counter, run
from tests.kill.scenarios import Scenario, damage, differences
from vlhmm.cli import main

ERRORS = (errno.ENOSPC, errno.EIO)


class Broken(Exception):
    """A law did not hold."""


@dataclass(frozen=True)
class Reference:
    """The same command, uninterrupted."""

    scenario: Scenario
    folder: Path
    seconds: float
    operations: int


def rehearse(scenario: Scenario, work: Path) -> None:
    """The command in this very process, its output dropped."""
    folder = _fresh(work / scenario.name / "rehearsed")
    before, arguments = Path.cwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["vlhmm", *scenario.command]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            status = main()
    finally:
        os.chdir(before)
        sys.argv = arguments
    if status:
        raise Broken(f"{scenario.name} fails by itself: {errors.getvalue()}")


def reference(scenario: Scenario, work: Path) -> Reference:
    folder = work / scenario.name / "reference"
    folder.mkdir(parents=True)
    ended = run(list(scenario.command), folder, work / "report")
    if ended.status:
        raise Broken(f"{scenario.name} fails by itself: {ended.err}")
    return Reference(scenario, folder, ended.seconds, ended.operations)


def killed(whole: Reference, work: Path, draw: random.Random, limit: int) -> Counter[str]:
    """One run with at most `limit` kills, each followed by a resume, to its end."""
    scenario, folder = whole.scenario, _fresh(work / whole.scenario.name / "killed")
    outcomes: Counter[str] = Counter()
    arguments = list(scenario.command)
    kills = 0
    while True:
        fault, after = None, None
        if kills < limit and (kills == 0 or draw.random() < 0.5):
            if whole.operations and draw.random() < 0.5:
                fault = Fault(draw.randint(1, whole.operations), KILL)
            else:
                after = draw.uniform(0, whole.seconds)
        ended = run(arguments, folder, work / "report", fault, after)
        place = "at a write" if fault else "at a time"
        if ended.status == -9:
            kills += 1
            outcomes[f"killed {place}"] += 1
            _require_whole(folder, f"{arguments} {fault or after}")
        elif _done(ended, scenario):
            break
        else:
            raise Broken(f"{arguments} after {kills} kills: status {ended.status}\n{ended.err}")
        arguments = [*scenario.command, *scenario.resume]
    if kills < limit and (fault or after is not None):
        outcomes["ended before its kill"] += 1
    _require_same(whole, folder, f"{arguments} after {kills} kills")
    outcomes["resumed to the same bits"] += kills
    return outcomes


def failing(whole: Reference, work: Path, operation: int, error: int) -> str:
    """One run in which an operation on a file fails; the outcome."""
    scenario, folder = whole.scenario, _fresh(work / whole.scenario.name / "failing")
    ended = run(list(scenario.command), folder, work / "report", Fault(operation, error))
    about = f"{' '.join(scenario.command)}: {os.strerror(error)} at operation {operation} ({ended.failed})"
    _require_whole(folder, about)
    if ended.status == 0:
        # A folder that exists already need not be made, and a file system may lack locks and files without names; anything
        # else must be told.
        what, _, path = ended.failed.partition(" ")
        if what not in ("mkdir", "unnamed") and not (what == "open" and path.endswith("/.lock")):
            raise Broken(f"{about}: it goes on as if nothing had happened")
        outcome = f"went on without: {what}"
    else:
        outcome = f"one line: {os.strerror(error)}"
        errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        if ended.status != 2 or "Traceback" in ended.err or len(errors) != 1 or ended.err.splitlines()[-1] != errors[0]:
            raise Broken(f"{about}: status {ended.status}\n{ended.err}")
        if os.strerror(error) not in errors[0] or "out" not in errors[0]:
            raise Broken(f"{about}: does not name the file and the reason: {errors[0]}")
    again = run([*scenario.command, *scenario.resume], folder, work / "report")
    if not _done(again, scenario):
        raise Broken(f"{about}: does not go on, status {again.status}\n{again.err}")
    _require_same(whole, folder, about)
    return outcome


def _done(ended: Ended, scenario: Scenario) -> bool:
    return ended.status == 0 or (scenario.refuses_finished and ended.status == 2 and "exists already" in ended.err)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _require_whole(folder: Path, about: str) -> None:
    if found := damage(folder):
        raise Broken(f"{about}: {'; '.join(found)}")


def _require_same(whole: Reference, folder: Path, about: str) -> None:
    if found := differences(whole.folder, folder):
        raise Broken(f"{about}: {'; '.join(found)}")


def kill_all(
    wholes: list[Reference], work: Path, kills: int, draw: random.Random, say: Callable[[str], None]
) -> dict[str, Counter[str]]:
    """So many kills, spread over the scenarios in turn."""
    outcomes: dict[str, Counter[str]] = {whole.scenario.name: Counter() for whole in wholes}
    turn, done = 0, 0
    while done < kills:
        whole = wholes[turn % len(wholes)]
        found = killed(whole, work, draw, min(3, kills - done))
        outcomes[whole.scenario.name] += found
        done += found["killed at a write"] + found["killed at a time"]
        turn += 1
        say(f"{done} of {kills} kills: {whole.scenario.name}")
    return outcomes


def fail_all(
    wholes: list[Reference], work: Path, most: int | None, draw: random.Random, say: Callable[[str], None]
) -> dict[str, Counter[str]]:
    """Every operation on files fails once with each error, or `most` of them drawn at random for each scenario."""
    outcomes: dict[str, Counter[str]] = {whole.scenario.name: Counter() for whole in wholes}
    if counter() is None:
        return outcomes
    for whole in wholes:
        every = [(number, error) for number in range(1, whole.operations + 1) for error in ERRORS]
        chosen = every if most is None or most >= len(every) else sorted(draw.sample(every, most))
        for number, error in chosen:
            outcomes[whole.scenario.name][failing(whole, work, number, error)] += 1
        say(f"{len(chosen)} of {len(every)} failing operations: {whole.scenario.name}")
    return outcomes
