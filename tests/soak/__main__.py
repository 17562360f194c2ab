"""`python -m tests.soak`: counts of queries and outcomes, and a command for every failure; exit status 1 if there is one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from tests.soak.cases import Case, draw_case
from tests.soak.checks import CHECKS

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MAX_SHOWN, MAX_REASON = 50, 300


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    failures = 0
    for seed in range(options.seed, options.seed + options.cases):
        dtype = options.dtype or list(DTYPES)[seed % 2]
        case = draw_case(seed, DTYPES[dtype], options.device, options.precision)
        for name in options.query or CHECKS:
            began = time.perf_counter()
            outcome, reason = _outcome(CHECKS[name], case)
            seconds[name] += time.perf_counter() - began
            counts[name, outcome] += 1
            if outcome == "right":
                continue
            failures += 1
            if failures <= MAX_SHOWN:
                command = f"python -m tests.soak --cases 1 --seed {seed} --dtype {dtype} --query {name}"
                if options.device != "cpu":
                    command += f" --device {options.device} --precision {options.precision}"
                print(f"{outcome}: {case.kind}, window {case.window}: {reason}\n  {command}", flush=True)
    dtypes = options.dtype or " and ".join(DTYPES) + " by turns"
    print(f"{options.cases} HMMs from seed {options.seed}, {dtypes}, on {options.device}")
    print(f"{'query':<26}{'right':>9}{'wrong':>9}{'error':>9}{'seconds':>9}")
    for name in options.query or CHECKS:
        found = "".join(f"{counts[name, outcome]:>9}" for outcome in ("right", "wrong", "error"))
        print(f"{name:<26}{found}{seconds[name]:>9.1f}")
    return 1 if failures else 0


def _outcome(check: Callable[[Case], None], case: Case) -> tuple[str, str]:
    with np.errstate(divide="ignore"):
        try:
            check(case)
        except AssertionError as error:
            return "wrong", " ".join(str(error).split())[:MAX_REASON]
        except Exception as error:
            return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON]}"
    return "right", ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="HMMs to draw (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first HMM; each next one has the next seed")
    parser.add_argument("--dtype", choices=DTYPES, help="default: by turns, float32 where the seed is even")
    parser.add_argument("--query", choices=CHECKS, action="append", help="may be repeated; default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", choices=["highest", "tf32", "bf16"], default="highest", help="on a GPU")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
