"""A computation that takes turns with others, and batches that fit into a turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from vlhmm.pauses import pausing

TURN_SECONDS = 0.02
"""What one turn of the engine may spend on questions, and on texts to be read, where their steps are short enough."""


class GivenUpError(BaseException):
    """The computation was cancelled: its requests no longer wait for the answer."""


class Sliced:
    """A coroutine: a computation in a thread of its own that runs only while `run` blocks on it, so one thread at a time uses the model.

    Args:
        compute: The computation; it stops where it calls `vlhmm.pauses.pause`.
        threads: Where the thread comes from.
        seconds: Of a slice.
        clock: The time.
    """

    def __init__(
        self,
        compute: Callable[[], Any],
        threads: Executor,
        seconds: float = TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute, self._threads, self._seconds, self._clock = compute, threads, seconds, clock
        self._resumed, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._begun = 0.0
        self._started = self._given_up = False
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> bool:
        """Compute one slice; returns whether that was the last one."""
        if not self._started:
            self._started = True
            self._threads.submit(self._work)
        self._begun = self._clock()
        self._resumed.release()
        self._stopped.acquire()
        return self.ended

    def give_up(self) -> None:
        """End at the next pause; there is no result."""
        self._given_up = True
        while self._started and not self.ended:
            self.run()
        self.ended = True

    def _work(self) -> None:
        self._resumed.acquire()
        try:
            with pausing(self._pause):
                self.result = self._compute()
        except GivenUpError:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.ended = True
            self._stopped.release()

    def _pause(self) -> None:
        if not self._given_up and self._clock() - self._begun >= self._seconds:
            self._stopped.release()
            self._resumed.acquire()
        if self._given_up:
            raise GivenUpError


class Pace:
    """Adapts the batch size to a time budget: halved after a slow batch, doubled after fast full ones.

    Args:
        first: Of the first part.
        least: Of any part.
        most: Of any part.
        seconds: What a part may take.
    """

    def __init__(self, first: int, least: int, most: int, seconds: float = TURN_SECONDS) -> None:
        self.size, self._least, self._most, self._seconds = first, least, most, seconds

    def took(self, size: int, seconds: float) -> None:
        """A part of so much work took so long."""
        if seconds > self._seconds:
            self.size = max(self._least, min(self.size, size) // 2)
        elif size >= self.size and seconds < self._seconds / 2:
            self.size = min(self._most, 2 * self.size)
