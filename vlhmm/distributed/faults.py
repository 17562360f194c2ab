"""Ranks that are lost or fail: the others say which one, and why.

What ranks know of each other's errors is in the store that they meet in, which lives in torchrun, and so longer than any rank.
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
    """Another rank failed, and has told why: there is nothing to add."""


class FinalError(RuntimeError):
    """What would come again, were the processes started anew."""


@contextmanager
def collective(here: World, what: str = "") -> Iterator[None]:
    """What ranks do together, and where in their work: an error of the transport says which rank is missing."""
    if here.size == 1:
        yield
        return
    begun = time.monotonic()
    try:
        yield
    except (OtherRankError, LostRankError):
        raise
    # All that gloo and NCCL raise.
    except RuntimeError as error:
        raise _lost(here, what, time.monotonic() - begun, "timed out" in str(error).lower()) from error


def _lost(here: World, what: str, waited: float, timed_out: bool) -> Exception:
    try:
        store = store_of_ranks()
        store.set(f"vlhmm/present/{here.rank}", "")
        # Ranks that wait as well reach their limits a little later.
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
    """The first rank that comes here raises its own error; in the others this raises that one's."""
    if isinstance(error, OtherRankError):
        return
    try:
        # The store lives in torchrun, and so longer than any rank.
        if store_of_ranks().add("vlhmm/failed", 1) == 1:
            if _is_final(error):
                lasting_store().set(FINAL, f"{attempt.partition('.')[0]} rank {here.rank}: {error}")
            store_of_ranks().set("vlhmm/error", f"rank {here.rank}: {error}")
            return
        store_of_ranks().wait(["vlhmm/error"], timedelta(seconds=ROLL_CALL_SECONDS))
        other = _other_rank_error()
    except RuntimeError:
        # No other rank is left.
        return
    raise other from error


def _is_final(error: BaseException) -> bool:
    """It would come again in processes that torchrun starts anew."""
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in TRANSIENT
    return isinstance(error, ValueError | FinalError)


def final_error(attempt: str) -> str | None:
    """That of processes before these."""
    if not lasting_store().check([FINAL]):
        return None
    process, _, reason = lasting_store().get(FINAL).decode().partition(" ")
    return None if process == attempt.partition(".")[0] else str(reason)


def _other_rank_error() -> OtherRankError:
    return OtherRankError(store_of_ranks().get("vlhmm/error").decode())


def store_of_ranks() -> Any:
    return dist.distributed_c10d._get_default_store()


def lasting_store() -> Any:
    """Beneath that of these processes: the one of torchrun itself."""
    store = store_of_ranks()
    while isinstance(store, dist.distributed_c10d.PrefixStore):
        store = store.underlying_store
    return store
