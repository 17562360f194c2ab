"""What a long computation tells while it runs: generators yield these, and return their result."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Progress:
    """How far a part of the work has come."""

    what: str
    """The part."""
    done: int
    total: int | None
    """None: not known."""
    unit: str = ""
    """What is counted, where its rate is of interest."""
    amount: int | None = None
    """How much of that unit this call has done; None: `done`."""
    note: str = ""
    """What else is known at this point."""


@dataclass(frozen=True)
class Note:
    """One line that a person should read."""

    text: str


def result_of(steps: Generator[Any, None, Result]) -> Result:
    """What a generator returns at its end; what it yields is passed over.

    Example:
        >>> from vlhmm.progress import Progress, result_of
        >>> def counting():
        ...     yield Progress("counting", 1, 2)
        ...     return 2
        >>> result_of(counting())
        2
    """
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result


def duration(seconds: float) -> str:
    """In words: 12.3 s, 4 min 05 s, 1 h 49 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
