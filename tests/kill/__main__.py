"""`python -m tests.kill --kills 100 --seed 0`: prints what was done to which command, and what came of it; status 1 if a law broke."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("train", "em", "prepare", "distill", "cluster")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many processes are killed")
    parser.add_argument("--errors", type=int, default=None, help="failing operations a command; default: all, twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(NAMES), help="commands, separated by commas")
    parser.add_argument("--json", type=Path, help="write counts by outcome there")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="vlhmm-kill-") as folder:
        work = Path(folder)
        if "VLHMM_KILL_PRELOADED" not in os.environ:
            return _again_with_faults(work)
        return _carry_out(options, chosen, work)


def _again_with_faults(work: Path) -> int:
    """The same command with the library that makes operations fail, where a compiler can make it."""
    environment = {**os.environ, "VLHMM_KILL_PRELOADED": "", "OMP_NUM_THREADS": "1"}
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is not None and sys.platform == "linux":
        library = work / "faults.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True)
        environment["LD_PRELOAD"] = str(library)
    else:
        print("no C compiler on Linux: kills come at random times alone, and no operation fails")
    tests, root = str(HERE.parent), str(HERE.parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([root, tests, environment.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-m", "tests.kill", *sys.argv[1:]], env=environment, check=False).returncode


def _carry_out(options: argparse.Namespace, chosen: list[str], work: Path) -> int:
    import torch

    torch.set_num_threads(1)
    from tests.kill.harness import Broken, fail_all, kill_all, reference, rehearse
    from tests.kill.scenarios import scenarios, write_material

    begun = time.monotonic()

    def say(text: str) -> None:
        if not options.quiet:
            print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr, flush=True)

    material = work / "material"
    material.mkdir()
    write_material(material, teacher="distill" in chosen)
    wanted = [one for one in scenarios(material) if one.name in chosen]
    for one in wanted:
        # Commands import much of what they use only when they use it: a child that is forked has it then.
        rehearse(one, work)
    wholes = [reference(one, work) for one in wanted]
    for whole in wholes:
        say(f"{whole.scenario.name}: {whole.seconds:.2f} s, {whole.operations} operations on files")
    draw = random.Random(options.seed)
    try:
        killed = kill_all(wholes, work, options.kills, draw, say)
        failed = fail_all(wholes, work, options.errors, draw, say)
    except Broken as broken:
        print(f"BROKEN (seed {options.seed}): {broken}")
        return 1
    print(f"seed {options.seed}, {time.monotonic() - begun:.0f} s")
    for whole in wholes:
        name = whole.scenario.name
        print(f"{name}: vlhmm {' '.join(whole.scenario.command).replace(str(material), 'MATERIAL')}")
        print(f"  {whole.operations} operations on files in {whole.seconds:.2f} s")
        for outcome, count in [*sorted(killed[name].items()), *sorted(failed[name].items())]:
            print(f"  {count:4d} {outcome}")
    kills = sum(count for one in killed.values() for outcome, count in one.items() if outcome.startswith("killed"))
    errors = sum(sum(one.values()) for one in failed.values())
    if options.json is not None:
        record = _record(options, {name: [killed[name], failed[name]] for name in killed}, time.monotonic() - begun)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{kills} kills and {errors} failing operations: every run went on to the same bits")
    return 0


def _record(options: argparse.Namespace, outcomes: dict[str, list[Counter[str]]], seconds: float) -> dict[str, Any]:
    import torch

    from vlhmm.provenance import commit_of_source, device_name, versions

    return {
        "command": " ".join(["python", "-m", "tests.kill", *sys.argv[1:]]),
        "commit": commit_of_source(),
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "kills": {name: dict(killed) for name, (killed, _) in outcomes.items()},
        "failing operations": {name: dict(failed) for name, (_, failed) in outcomes.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
