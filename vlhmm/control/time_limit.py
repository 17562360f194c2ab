"""Constraints are compiled within a time limit: loops whose length depends on the constraint ask whether it has passed.

The limit is on CPU time of the compiling thread, so that a constraint is not refused because the machine is busy.
It is held in a context variable: threads that compile side by side each have their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

TIME_LIMIT: Final = 2.0
"""Seconds that a constraint's compilation may take where nothing else is said."""

REMEDY: Final = "use fewer or shorter phrases, smaller counts, or a regular expression without long counted repetitions"


class TimeLimitError(ValueError):
    """A constraint was not compiled within its time limit."""


@dataclass(frozen=True)
class _Limit:
    seconds: float
    ends: float
    clock: Callable[[], float]


_limit: ContextVar[_Limit | None] = ContextVar("time limit of constraints", default=None)


@contextmanager
def limited_to(seconds: float | None, clock: Callable[[], float] | None = None) -> Iterator[None]:
    """What is compiled inside may take so long; None for any time. Within another limit, whichever ends first holds."""
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"time_limit is {seconds}, but must be at least 0 seconds, or None for any time")
    limit = _limit.get()
    if seconds is not None:
        clock = clock or (time.thread_time if limit is None else limit.clock)
        ends = clock() + seconds
        if limit is None or ends < limit.ends:
            limit = _Limit(seconds, ends, clock)
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def check_time(doing: str, number: int) -> None:
    """Raises where the limit has passed; `number` says how far `doing` has come."""
    limit = _limit.get()
    if limit is not None and limit.clock() >= limit.ends:
        raise TimeLimitError(
            f"the constraint was not compiled within {limit.seconds:g} s, the time limit ({doing}: {number:,}); "
            f"raise time_limit, or {REMEDY}"
        )
