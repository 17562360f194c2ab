"""`python -m tests.soak`: counts of queries and outcomes, and a command for every failure; exit status 1 if there is one."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.soak.cases import TOLERANCE
from tests.soak.checks import CHECKS
from tests.soak.running import DTYPES, PRECISIONS, Counts, run
from vlhmm.provenance import commit_of_source, device_name, versions

MAX_SHOWN = 50
OUTCOMES = ("right", "wrong", "error")


def main() -> int:
    options = _options()
    begun = time.perf_counter()
    counts = Counts()
    for part in run(options):
        for failure in part.failures:
            if len(counts.failures) < MAX_SHOWN:
                print(failure, flush=True)
            counts.failures.append(failure)
        part.failures = []
        counts.add(part)
    seconds = time.perf_counter() - begun
    num_cases = counts.cases.total()
    dtypes = options.dtype or " and ".join(DTYPES) + " by turns"
    print(f"{num_cases} HMMs from seed {options.seed}, {dtypes}, on {options.device}")
    if options.device != "cpu" or options.processes > 1:
        held = ", ".join(f"{number} to {TOLERANCE[name]:g} ({name})" for name, number in sorted(counts.cases.items()))
        print(f"{held}; {options.processes} processes, {seconds:.0f} s")
    print(f"{'query':<26}{'right':>9}{'wrong':>9}{'error':>9}{'seconds':>9}")
    for name in options.query or CHECKS:
        found = "".join(f"{_count(counts, name, outcome):>9}" for outcome in OUTCOMES)
        print(f"{name:<26}{found}{counts.seconds[name]:>9.1f}")
    if num_cases < options.cases:
        print(f"{options.cases - num_cases} of {options.cases} cases were not run within {options.seconds:g} s")
    if options.json is not None:
        options.json.write_text(json.dumps(_record(options, counts, seconds), indent=1) + "\n", encoding="utf-8")
    return 1 if counts.failures or num_cases < options.cases else 0


def _count(counts: Counts, query: str, outcome: str) -> int:
    return sum(counts.outcomes[query, outcome, held] for held in TOLERANCE)


def _record(options: argparse.Namespace, counts: Counts, seconds: float) -> dict[str, Any]:
    device = torch.device(options.device)
    return {
        "command": " ".join(["python", "-m", "tests.soak", *sys.argv[1:]]),
        "commit": commit_of_source(),
        "device": device_name(device),
        "versions": versions(),
        "seed": options.seed,
        "processes": options.processes,
        "seconds": round(seconds, 1),
        "cases": {held: {"number": number, "tolerance": TOLERANCE[held]} for held, number in counts.cases.items()},
        "outcomes": {
            held: {
                name: {outcome: counts.outcomes[name, outcome, held] for outcome in OUTCOMES}
                for name in options.query or CHECKS
            }
            for held in counts.cases
        },
        "failures": counts.failures,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="HMMs to draw (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first HMM; each next one has the next seed")
    parser.add_argument("--dtype", choices=DTYPES, help="default: by turns, float32 where the seed is even")
    parser.add_argument("--query", choices=CHECKS, action="append", help="may be repeated; default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", choices=[*PRECISIONS, "turns"], default="highest", help="on a GPU")
    parser.add_argument(
        "--queries", type=int, help="of each HMM, by turns; default: all. A GPU gets through more HMMs with few"
    )
    parser.add_argument("--processes", type=int, help="that share the cases (default 1, on a GPU 8)")
    parser.add_argument(
        "--seconds", type=float, default=np.inf, help="then no case is begun; status 1 where some are left"
    )
    parser.add_argument("--json", type=Path, help="write counts by outcome there")
    options = parser.parse_args()
    if options.processes is None:
        # A case is many kernels of a few microseconds each: one process alone keeps a GPU waiting.
        options.processes = 1 if options.device == "cpu" else min(options.cases, 8)
    if min(options.cases, options.processes, options.queries or 1) < 1:
        parser.error("--cases, --processes and --queries must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
