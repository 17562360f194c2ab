"""`python -m tests.fuzz [TARGET...] --cases N --seed S`: exit status 1 if any case crashes, hangs, dies or answers wrongly."""

from __future__ import annotations

import argparse
import os
import sys

# Threads do not survive a fork; set before anything that starts them is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tests.fuzz.harness import fuzz, present_targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(present_targets())}; default: all")
    parser.add_argument("--cases", type=int, default=1000, help="cases of each target (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first case; the next is one more (default: %(default)s)"
    )
    parser.add_argument("--show", action="store_true", help="show what cases print, and tracebacks")
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(present_targets()))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known are: {', '.join(present_targets())}")
    bad = 0
    for target in options.targets or present_targets():
        report = fuzz(target, options.cases, options.seed, show=options.show)
        bad += len(report.bad)
        for line in report.lines():
            print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
