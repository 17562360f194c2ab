"""The start of ranks: how long they wait for each other, the process group that they join, and whether torchrun has started them
anew."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from vlhmm.distributed.collectives import broadcast_object
from vlhmm.distributed.faults import (
    POLL_SECONDS,
    LostRankError,
    OtherRankError,
    claim,
    final_error,
    lasting_store,
    named_ranks,
)
from vlhmm.distributed.ranks import World, launched, world
from vlhmm.distributed.waiting import end_patience, patience

TIME_LIMIT = 600.0
"""Seconds that a rank waits for the others before it says which of them hangs."""
TIME_LIMIT_NAME = "VLHMM_RANK_TIMEOUT"
"""The environment variable that sets another limit."""
NCCL_EXTRA_SECONDS = 60.0
"""NCCL ends a process without a message when its own limit is reached: gloo's comes first."""


def chosen_time_limit() -> float:
    """Seconds that a rank waits for the others, unless the caller says otherwise."""
    given = os.environ.get(TIME_LIMIT_NAME)
    if not given:
        return TIME_LIMIT
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{TIME_LIMIT_NAME} is {given!r}, but must be a number of seconds above 0")
    return seconds


@contextmanager
def joined(time_limit: float | None = None) -> Iterator[World]:
    """The world that torchrun has started this process in, until the block ends; `ALONE` without torchrun.

    Within a process group it is that one, which its owner leaves. Where ranks fail, the first one raises its error, named by its
    rank; in all others `OtherRankError` is raised.

    Args:
        time_limit: Seconds that a rank waits for the others; None: those of `VLHMM_RANK_TIMEOUT`, or 600.

    Yields:
        The world.

    Raises:
        LostRankError: A rank was killed or hangs.
        OtherRankError: Another rank has failed.

    Example:
        >>> from vlhmm.distributed import joined
        >>> with joined() as world:
        ...     print(world.size)
        1
    """
    owner, attempt = launched() and not dist.is_initialized(), ""
    if owner:
        # Imported before the process group exists: its functions bind the group at import as a default, and would hold it until exit.
        import_module("torch.distributed.nn.functional")
        time_limit = chosen_time_limit() if time_limit is None else time_limit
        limit = timedelta(seconds=time_limit)
        store, rank, size = next(rendezvous("env://", timeout=limit))
        attempt = _attempt(store, rank, size, time_limit)
        own = dist.distributed_c10d.PrefixStore(attempt, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=limit)
        if (reason := final_error(attempt)) is not None:
            dist.destroy_process_group()
            raise OtherRankError(reason)
    here = world()
    if here.size > 1 and "cpu" not in str(dist.get_backend_config()):
        raise ValueError(
            f"the process group's backend is {dist.get_backend()!r}, which moves no CPU tensors: make it by "
            'init_process_group("cpu:gloo,cuda:nccl")'
        )
    if here.size > 1:
        # A collective call: all ranks have joined.
        patience(dist.group.WORLD)
    try:
        yield here
    except (Exception, KeyboardInterrupt) as error:
        if here.size > 1 and owner:
            claim(here, error, attempt)
        raise
    finally:
        if owner:
            # A process group that is alive at interpreter exit is destroyed after it, while its threads still hold Python tensors:
            # that sometimes aborts the process.
            end_patience()
            dist.destroy_process_group()


def _attempt(store: Any, rank: int, size: int, time_limit: float) -> str:
    """A unique key prefix for this attempt: the store of torchrun outlives a restart, and still holds the keys of earlier processes.

    A handshake: every other rank posts a unique name, and the first rank answers under that name, so no stale key is taken for an answer.
    """
    # The first rank's name identifies its process, which lives as long as the others'.
    own = f"{_process(os.getpid())}.{uuid.uuid4().hex}"
    if rank > 0:
        store.set(f"vlhmm/hello/{rank}", own)
        try:
            store.wait([f"vlhmm/answer/{own}"], timedelta(seconds=time_limit))
        except RuntimeError as error:
            raise LostRankError(f"rank 0 did not start within {time_limit:.0f} s") from error
        attempt = str(store.get(f"vlhmm/answer/{own}").decode())
        store.set(f"vlhmm/heard/{attempt}/{rank}", "")
        return attempt
    missing, end = list(range(1, size)), time.monotonic() + time_limit
    while missing:
        if time.monotonic() > end:
            raise LostRankError(f"{named_ranks(missing)} did not start within {time_limit:.0f} s")
        for other in missing:
            if store.check([f"vlhmm/hello/{other}"]):
                store.set(f"vlhmm/answer/{store.get(f'vlhmm/hello/{other}').decode()}", own)
        missing = [other for other in missing if not store.check([f"vlhmm/heard/{own}/{other}"])]
        time.sleep(POLL_SECONDS)
    return own


@cache
def _process(pid: int) -> str:
    """A globally unique id of this process; cached by `pid`, so that a fork gets another one."""
    return uuid.uuid4().hex


def remember(name: str, here: World) -> None:
    """Sets a key that lasts until torchrun ends, restarts of the processes included; see `remembered`."""
    if launched() and dist.is_initialized() and here.is_first:
        lasting_store().set(f"vlhmm/remembered/{name}", _process(os.getpid()))


def remembered(name: str, here: World) -> bool:
    """Whether the first rank was here before torchrun started the processes anew. It alone knows; the others follow it.

    torchrun counts restarts on each machine by itself: one that has only joined again has seen none.
    """
    key, found = f"vlhmm/remembered/{name}", False
    if launched() and dist.is_initialized() and here.is_first and lasting_store().check([key]):
        found = lasting_store().get(key).decode() != _process(os.getpid())
    return broadcast_object(found, here, "the question whether this is a restart")
