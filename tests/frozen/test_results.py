"""Committed results are still found, and mean what they meant."""

from __future__ import annotations

from collections import Counter

import pytest

from . import records, results


@pytest.fixture(scope="module")
def recorded() -> dict:
    return records.read_json(results.NAME)[0]


def test_every_result_keeps_its_identity(recorded: dict) -> None:
    """A default that changes its value, or a setting that changes its name, would disown results."""
    now = results.identities()
    changed = [name for name, digest in recorded["identities"].items() if now.get(name) != digest]
    assert not changed, f"{len(changed)} of {len(recorded['identities'])} results have another identity: {changed[:5]}"
    new = sorted(now.keys() - recorded["identities"].keys())
    assert not new, f"{len(new)} results are not recorded: python -m tests.frozen record results; {new[:5]}"


def test_every_claim_keeps_its_verdict(recorded: dict) -> None:
    now = results.claims()
    assert list(records.json_differences(now, recorded["claims"], bitwise=True)) == []
    assert Counter(claim["outcome"] for claim in now) == {"supported": 97, "contradicted": 34, "not run": 15}
