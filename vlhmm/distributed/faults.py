"""Failure detection: if a rank dies or fails, the others report which one, and why.

Ranks report errors in the rendezvous store. It is part of the torchrun process, so it outlives every rank.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from vlhmm.distributed.ranks import World

POLL_SECONDS = 0.05
"""Between two looks at what another rank has told."""
ROLL_CALL_SECONDS = 1.0
"""In which ranks that have lost another one tell each other that they are there."""
FINAL = "vlhmm/final"
"""Where torchrun's store holds an error that no restart can mend: a process of the ranks that had it, and the error."""
TRANSIENT = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
    }
)
"""Errors of a file system or a network that a restart may mend; a full disk is none of them."""


class LostRankError(RuntimeError):
    """A rank was killed, or does not answer within the time limit."""


class OtherRankError(RuntimeError):
    """Another rank failed and has reported the reason; this error repeats it."""


class FinalError(RuntimeError):
    """An error that a restart of the processes would repeat."""


@contextmanager
def collective(here: World, what: str = "") -> Iterator[None]:
    """A collective operation; `what` says where in the work. An error of gloo or NCCL is raised again as one that names the missing rank."""
    if here.size == 1:
        yield
        return
    begun = time.monotonic()
    try:
        yield
    except (OtherRankError, LostRankError):
        raise
    # Every error of gloo and NCCL is a RuntimeError.
    except RuntimeError as error:
        raise _lost(here, what, time.monotonic() - begun, "timed out" in str(error).lower()) from error


def _lost(here: World, what: str, waited: float, timed_out: bool) -> Exception:
    try:
        store = store_of_ranks()
        store.set(f"vlhmm/present/{here.rank}", "")
        # Other waiting ranks reach their time limits a little later.
        end = time.monotonic() + (max(ROLL_CALL_SECONDS, min(10.0, waited / 2)) if timed_out else ROLL_CALL_SECONDS)
        absent = list(range(here.size))
        while absent and time.monotonic() < end:
            if store.check(["vlhmm/error"]):
                return _other_rank_error()
            absent = [rank for rank in absent if not store.check([f"vlhmm/present/{rank}"])]
            time.sleep(POLL_SECONDS)
    except RuntimeError:
        return LostRankError(f"contact with the other ranks and with torchrun is lost{what and f' in {what}'}")
    named = named_ranks(absent) if absent else "another rank"
    where = what and f" in {what}"
    if timed_out:
        return LostRankError(
            f"{named} did not answer for {waited:.0f} s{where}: it hangs, or the time limit is too short"
        )
    return LostRankError(f"{named} was lost{where}: it was killed, or its machine cannot be reached")


def named_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def claim(here: World, error: BaseException, attempt: str) -> None:
    """The first rank that calls this raises its own error; in all others the call raises that rank's error."""
    if isinstance(error, OtherRankError):
        return
    try:
        # The store is part of the torchrun process: it outlives every rank.
        if store_of_ranks().add("vlhmm/failed", 1) == 1:
            if _is_final(error):
                lasting_store().set(FINAL, f"{attempt.partition('.')[0]} rank {here.rank}: {error}")
            store_of_ranks().set("vlhmm/error", f"rank {here.rank}: {error}")
            return
        store_of_ranks().wait(["vlhmm/error"], timedelta(seconds=ROLL_CALL_SECONDS))
        other = _other_rank_error()
    except RuntimeError:
        # The store is gone: no other rank is running.
        return
    raise other from error


def _is_final(error: BaseException) -> bool:
    """Whether the error would recur in processes that torchrun restarts."""
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in TRANSIENT
    return isinstance(error, ValueError | FinalError)


def final_error(attempt: str) -> str | None:
    """The final error of an earlier attempt (before a restart by torchrun)."""
    if not lasting_store().check([FINAL]):
        return None
    process, _, reason = lasting_store().get(FINAL).decode().partition(" ")
    return None if process == attempt.partition(".")[0] else str(reason)


def _other_rank_error() -> OtherRankError:
    return OtherRankError(store_of_ranks().get("vlhmm/error").decode())


def store_of_ranks() -> Any:
    return dist.distributed_c10d._get_default_store()


def lasting_store() -> Any:
    """The store of torchrun itself, below the prefix of this attempt."""
    store = store_of_ranks()
    while isinstance(store, dist.distributed_c10d.PrefixStore):
        store = store.underlying_store
    return store
