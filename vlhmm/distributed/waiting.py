"""Work of unequal length: ranks wait without a time limit for a slow rank, but not for a dead one (heartbeats)."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from vlhmm.distributed.collectives import broadcast_object, gather_objects
from vlhmm.distributed.faults import LostRankError, collective, named_ranks, store_of_ranks
from vlhmm.distributed.ranks import World
from vlhmm.heartbeat import Heartbeat, Watch, beat_seconds
from vlhmm.interrupts import stop_signals

Value = TypeVar("Value")

PATIENT_SECONDS = 1.0
"""After which a rank that waits for slow ones hears signals, and looks for signs of life."""


def gather_when_done(value: Value, here: World, what: str) -> list[Value]:
    """`gather_objects` after work of unequal length: ranks wait for the slowest as long as it takes, unless it is lost or gives
    no sign of life."""
    _wait_for_slow(here, what)
    return gather_objects(value, here, what)


def first_does(work: Callable[[], Value], here: World, what: str = "") -> Value:
    """What `work` gives on the first rank, on all of them. They wait as long as it takes, unless it is lost or gives no sign of
    life."""
    if here.size == 1:
        return work()
    made = work() if here.is_first else None
    _wait_for_slow(here, what)
    return broadcast_object(cast("Value", made), here, what)


def first_yields(
    steps: Callable[[], Generator[Any, None, Value]], here: World, what: str = ""
) -> Generator[Any, None, Value]:
    """`first_does` for work that tells of its progress: the first rank yields what `steps` does, the others nothing. The first
    decides what a signal does."""
    if here.is_first:
        made = yield from steps()
        return first_does(lambda: made, here, what)
    with stop_signals():
        return first_does(cast("Callable[[], Value]", steps), here, what)


@dataclass(frozen=True)
class _Patience:
    """Heartbeats, and a process group without a time limit: to wait for a slow rank, but not for a dead one."""

    group: dist.ProcessGroup
    """The same ranks, without a time limit: they hear at once of a rank that is lost, and never of one that is slow."""
    heartbeat: Heartbeat


@cache
def patience(whole: Any) -> _Patience:
    group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timedelta(days=365)))
    return _Patience(group, Heartbeat(store_of_ranks(), dist.get_rank(), group_time_limit()))


def end_patience() -> None:
    if patience.cache_info().currsize:
        patience(dist.group.WORLD).heartbeat.end()
    patience.cache_clear()


# Callers with a process group of their own may keep it until exit.
atexit.register(patience.cache_clear)


def group_time_limit() -> float:
    """Seconds that the ranks of the present process group wait for each other."""
    options = cast("Any", dist.group.WORLD)._get_backend(torch.device("cpu")).options
    return float(options._timeout.total_seconds())


def _wait_for_slow(here: World, what: str) -> None:
    """A barrier without a time limit, as long as the missing ranks send heartbeats."""
    if here.size == 1:
        return
    group, limit = patience(dist.group.WORLD).group, group_time_limit()
    watch = Watch(store_of_ranks(), [rank for rank in range(here.size) if rank != here.rank], limit)
    with collective(here, what):
        waiting = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
        try:
            while not _ended_within(waiting, min(PATIENT_SECONDS, beat_seconds(limit))):
                if silent := watch.silent():
                    raise LostRankError(
                        f"{named_ranks(silent)} gave no sign of life for {limit:.0f} s{what and f' in {what}'}: "
                        "the process is stopped, or its machine cannot be reached"
                    )
        except BaseException:
            if not waiting.is_completed():
                # A pending all-reduce cannot be cancelled, and destroying the group would block on it: leak a reference instead.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            raise


def _ended_within(work: Any, seconds: float) -> bool:
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        # The work has failed, or completed in the meantime.
        work.wait()
    return True
