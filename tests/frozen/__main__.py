"""`python -m tests.frozen record [PART ...]`: writes the records anew, all or those named."""

from __future__ import annotations

import sys

import torch

import vlhmm.lm
from vlhmm.ops import dispatch

from . import commands, folders, public_names, queries, results, training

PARTS = {
    "queries": queries.record,
    "public-names": public_names.record,
    "results": results.record,
    "folders": folders.record,
    "training": training.record,
    "commands": commands.record,
}


def main(arguments: list[str]) -> int:
    known = f"known parts: {', '.join(PARTS)}"
    if not arguments or arguments[0] != "record" or any(name not in PARTS for name in arguments[1:]):
        print(f"usage: python -m tests.frozen record [PART ...]; {known}", file=sys.stderr)
        return 2
    # As in the tests: sums over several threads depend on their number.
    torch.set_num_threads(1)
    # As in conftest.py: how a text opened when the first records were made, and torch's loops.
    vlhmm.lm.belief_at = folders.opening_of_records
    dispatch.MAX_LOOP_STATES = 0
    for name in arguments[1:] or PARTS:
        PARTS[name]()
        print(f"recorded: {name}")
    return 0


sys.exit(main(sys.argv[1:]))
