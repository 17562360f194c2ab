"""Every training loop goes the recorded way, and goes on after a stop as if there had been none."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from . import records, training


@cache
def recorded() -> tuple[dict[str, Any], bool]:
    return records.read_json(training.NAME)


@pytest.mark.parametrize("name", training.LOOPS)
def test_losses_are_the_recorded_ones_stopped_or_not(name: str, tmp_path: Path) -> None:
    loop = training.loop_of(name)
    figures, weights = training.trained(loop)
    found = training.as_record(figures, weights)
    expected, bitwise = recorded()[0][name], recorded()[1]
    assert training.differences(found, expected, bitwise) == []

    training.stopped(loop, tmp_path / "run")
    rest, resumed = training.trained(loop, tmp_path / "run", resume=True)
    assert training.same_bits(resumed, weights)
    assert min(rest["losses"]) > 1, "the run began anew"
    for kind in ("losses", "checks"):
        assert rest[kind] == {step: figures[kind][step] for step in rest[kind]}
