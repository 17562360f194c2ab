"""Signs of life: a thread of each process counts in the store that all of them reach, for as long as the process runs at all."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

MAX_SECONDS = 30.0
"""Between two beats."""
BEATS_IN_LIMIT = 10
"""At least: one that comes late, while Python is held up, is not missed."""


def beat_seconds(time_limit: float) -> float:
    return min(MAX_SECONDS, time_limit / BEATS_IN_LIMIT)


def _key(rank: int) -> str:
    return f"vlhmm/beat/{rank}"


class Heartbeat:
    """The thread of one rank. A process that is stopped, or whose machine is gone, beats no more; one that works beats, however
    long its work takes."""

    def __init__(self, store: Any, rank: int, time_limit: float) -> None:
        # A connection of its own: whoever waits by another one holds that.
        self._store, self._rank, self._seconds = store.clone(), rank, beat_seconds(time_limit)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while True:
            try:
                self._store.set(_key(self._rank), str(count))
            except RuntimeError:
                # torchrun is gone.
                return
            count += 1
            if self._ended.wait(self._seconds):
                return

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class Watch:
    """Which of some ranks are silent, by the clock of the one that asks."""

    def __init__(self, store: Any, ranks: Sequence[int], time_limit: float) -> None:
        self._store, self._time_limit = store, time_limit
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._ranks, self._looked = ranks, -math.inf

    def silent(self) -> list[int]:
        """Those whose count has stood still for the time limit, or has not begun."""
        now = time.monotonic()
        if now < self._looked + beat_seconds(self._time_limit):
            return []
        if now > self._looked + self._time_limit / 2:
            # This process was stopped itself, and perhaps all of them: the clock begins anew.
            self._heard.clear()
        self._looked = now
        for rank in self._ranks:
            count = self._store.get(_key(rank)) if self._store.check([_key(rank)]) else b""
            if rank not in self._heard or self._heard[rank][0] != count:
                self._heard[rank] = count, now
        return [rank for rank, (_, heard) in self._heard.items() if now - heard >= self._time_limit]
