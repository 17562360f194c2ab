"""`python -m tests.fuzz [TARGET...] --cases N --seed S`: exit status 1 if any case crashes, hangs, dies or answers wrongly."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

# Threads do not survive a fork; set before anything that starts them is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from tests.fuzz.harness import Report, fuzz, present_targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(present_targets())}; default: all")
    parser.add_argument("--cases", type=int, default=1000, help="cases of each target (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first case; the next is one more (default: %(default)s)"
    )
    parser.add_argument("--show", action="store_true", help="show what cases print, and tracebacks")
    parser.add_argument("--json", type=Path, help="write counts by outcome there")
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(present_targets()))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known are: {', '.join(present_targets())}")
    bad, reports = 0, []
    for target in options.targets or present_targets():
        report = fuzz(target, options.cases, options.seed, show=options.show)
        bad += len(report.bad)
        reports.append(report)
        if options.json is not None:
            # After every target: what was run is known, whatever stops the next.
            options.json.write_text(json.dumps(_record(options, reports), indent=1) + "\n", encoding="utf-8")
        for line in report.lines():
            print(line, flush=True)
    return 1 if bad else 0


def _record(options: argparse.Namespace, reports: list[Report]) -> dict[str, Any]:
    from vlhmm.provenance import commit_of_source, device_name, versions

    return {
        "command": " ".join(["python", "-m", "tests.fuzz", *sys.argv[1:]]),
        "commit": commit_of_source(),
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "seed": options.seed,
        "targets": {
            one.target: {
                "cases": one.num_cases,
                "outcomes": dict(one.outcomes),
                "seconds": round(one.seconds, 1),
                "bad": [told for _, told in one.bad],
            }
            for one in reports
        },
    }


if __name__ == "__main__":
    sys.exit(main())
