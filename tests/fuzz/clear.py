"""What a refusal must be: one line that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.fuzz.harness import is_clear

Answer = TypeVar("Answer")
MAX_CHARS = 1500


def refused_or(make: Callable[[], Answer], folder: Path) -> Answer | None:
    """What `make` gives; None where it refuses something in `folder` clearly. Anything else is raised."""
    try:
        return make()
    except Exception as error:
        if not is_clear(error):
            raise
        told = str(error)
        assert folder.name in told, f"the error names no file: {told}"
        assert len(told.splitlines()) == 1, f"the error has several lines: {told!r}"
        assert len(told) <= MAX_CHARS, f"the error has {len(told)} characters: {told[:200]!r}"
        return None
