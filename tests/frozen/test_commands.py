"""Every command prints the recorded JSON."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from . import commands, entry_points, records


@cache
def recorded() -> tuple[dict[str, Any], bool]:
    return records.read_json(commands.NAME)


@pytest.mark.parametrize("session", commands.SESSIONS)
def test_every_command_prints_the_recorded_json(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLHMM_DEBUG", raising=False)
    found = commands.printed(session, tmp_path / "first")
    expected = recorded()[0][session]
    assert [one["command"] for one in found] == [one["command"] for one in expected]
    for now, before in zip(found, expected, strict=True):
        assert list(records.json_differences(now["printed"], before["printed"], recorded()[1])) == [], now["command"]


def test_every_command_with_json_is_among_them() -> None:
    run = {" ".join(command) for session in commands.SESSIONS.values() for command in session if "--json" in command}
    missing = [
        name
        for name, parameters in entry_points.leaf_commands()
        if "--json" in parameters and not any(command.startswith(f"{name} ") for command in run)
    ]
    assert missing == []
