"""What local steps of several ranks cost in perplexity, on the Penn Treebank.

    python -m experiments.local_steps --local-steps 1 8 32

trains one small HMM by as many ranks on a CPU, with weights averaged after so many steps of each; 1: gradients are summed at every step.
The folder `VLHMM_DATA` holds ptb/. The test text is not read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vlhmm.provenance import commit_of_source, device_name, versions

RESULT = Path(__file__).parent / "ours" / "local-steps.json"
SETTINGS = (
    *("num_blocks=64", "states_per_block=16", "dim=32"),
    *("epochs=1", "batch_size=64", "window=32", "seed=0"),
)


def train(local_steps: int, ranks: int, changes: list[str], folder: Path) -> dict[str, Any]:
    """One training; its best and last validation perplexity."""
    settings = [word for change in (*SETTINGS, *changes) for word in ("--set", change)]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *("-m", "vlhmm", "train", "ptb", "--preset", "cpu", "--device", "cpu", *settings),
        *("--local-steps", str(local_steps), "--out", str(folder)),
    ]
    begun = time.monotonic()
    subprocess.run(command, check=True)
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    checks = [record["valid_perplexity"] for record in records if record["kind"] == "check"]
    return {
        "local_steps": local_steps,
        "changes": changes,
        "valid_perplexity": checks[-1],
        "checks": len(checks),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.local_steps", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=Path, default=Path("runs/local-steps"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all trainings")
    options = parser.parse_args()
    if "VLHMM_DATA" not in os.environ:
        parser.error("VLHMM_DATA is not set: it names the folder that holds ptb/")
    commit, found = commit_of_source(), []
    for local_steps in options.local_steps:
        name = "-".join([str(local_steps), *(change.replace("=", "-") for change in options.set)])
        found.append(train(local_steps, options.ranks, options.set, options.runs / name))
        print(f"{local_steps} local steps: validation perplexity {found[-1]['valid_perplexity']:.1f}", flush=True)
    record = {
        "command": " ".join(["python -m experiments.local_steps", *sys.argv[1:]]),
        "commit": commit,
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "ranks": options.ranks,
        "settings": ["preset=cpu", *SETTINGS],
        "trainings": found,
    }
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    RESULT.write_text(json.dumps([*kept, record], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
