"""Long computations can be paused and given up between their steps; whoever runs one says what happens there.

Held in a context variable, as time limits of constraints are: threads that compute side by side each have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_pause: ContextVar[Callable[[], None] | None] = ContextVar("pause of a computation", default=None)


@contextmanager
def pausing(at_pause: Callable[[], None]) -> Iterator[None]:
    """What is computed inside calls `at_pause` between its steps; an error that it raises gives the computation up."""
    token = _pause.set(at_pause)
    try:
        yield
    finally:
        _pause.reset(token)


def pause() -> None:
    """Stands where a computation has done a part of its work, and no lock is held."""
    at_pause = _pause.get()
    if at_pause is not None:
        at_pause()
