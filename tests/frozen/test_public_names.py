"""Nothing public is taken away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import public_names


@pytest.mark.parametrize(
    ("path", "lines"),
    [(public_names.API, public_names.api_lines), (public_names.COMMANDS, public_names.command_lines)],
    ids=["python", "command-line"],
)
def test_public_names_are_those_recorded(path: Path, lines: Callable[[], list[str]]) -> None:
    gone, new = public_names.changes(path, lines())
    assert not gone, f"taken away since {path.name} was recorded: {gone}; new: {new}"
    assert not new, f"new since {path.name} was recorded: {new}; python -m tests.frozen record public-names adds them"
