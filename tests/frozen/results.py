"""The committed results under experiments/: which settings each belongs to, and what they say about each claim."""

from __future__ import annotations

import hashlib
from typing import Any

from . import entry_points, records

NAME = "results"
EXPERIMENTS = records.REPOSITORY / "experiments"
OTHER_RESULTS = "control"
"""This experiment's results are no rows of a table."""
DIGITS = 16
"""Of a hash: enough to tell, and short enough to read."""


def identities() -> dict[str, str]:
    """By folder and file: the hash of what decides a result, from its own settings; of others that of their text."""
    found = {}
    for path in sorted(EXPERIMENTS.glob("*/results/*.json")):
        folder = path.parents[1].name
        if folder == OTHER_RESULTS:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            digest = entry_points.result_identity(path)
        found[f"{folder}/{path.name}"] = digest[:DIGITS]
    return found


def claims() -> list[dict[str, Any]]:
    return [
        {
            "table": file.relative_to(EXPERIMENTS).with_suffix("").as_posix(),
            "claim": verdict.text,
            "outcome": verdict.outcome,
            "numbers": verdict.numbers,
        }
        for file, verdict in entry_points.claim_verdicts(EXPERIMENTS)
    ]


def record() -> None:
    records.write_json(NAME, {"identities": identities(), "claims": claims()})
