"""Several processes as one, by torch.distributed: torchrun starts them, gloo and NCCL carry what they tell each other.

`World` says which of them this one is; functions take it as an argument. One process pays nothing: with `ALONE` each of them
returns what it was given. Objects travel by gloo between CPUs, as torch pickles them, and are never written to files.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import errno
import math
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from vlhmm.heartbeat import Heartbeat, Watch, beat_seconds
from vlhmm.interrupts import stop_signals

Value = TypeVar("Value")
Items = TypeVar("Items", bound=Sequence[Any] | Tensor)

TIME_LIMIT = 600.0
"""Seconds that a rank waits for the others before it says which of them hangs."""
TIME_LIMIT_NAME = "VLHMM_RANK_TIMEOUT"
"""The environment variable that sets another limit."""
NCCL_EXTRA_SECONDS = 60.0
"""NCCL ends a process without a message when its own limit is reached: gloo's comes first."""
POLL_SECONDS = 0.05
"""Between two looks at what another rank has told."""
PATIENT_SECONDS = 1.0
"""After which a rank that waits for slow ones hears signals, and looks for signs of life."""
ROLL_CALL_SECONDS = 1.0
"""In which ranks that have lost another one tell each other that they are there."""
SUMMED_AT_ONCE = 1 << 22
"""Numbers of each rank."""
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


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this one is.

    Example:
        >>> from vlhmm.distributed import World
        >>> World(rank=1, size=4).is_first
        False
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """On this machine; the number of its GPU."""
    local_size: int = 1
    """Ranks on this machine."""

    @property
    def is_first(self) -> bool:
        """The one that writes files and tells of progress."""
        return self.rank == 0


ALONE = World()


class LostRankError(RuntimeError):
    """A rank was killed, or does not answer within the time limit."""


class OtherRankError(RuntimeError):
    """Another rank failed, and has told why: there is nothing to add."""


class FinalError(RuntimeError):
    """What would come again, were the processes started anew."""


def launched() -> bool:
    """torchrun, or another launcher with the same environment variables, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def remember(name: str, here: World) -> None:
    """Until torchrun ends, also where it starts the processes anew; see `remembered`."""
    if launched() and dist.is_initialized() and here.is_first:
        _lasting_store().set(f"vlhmm/remembered/{name}", _process(os.getpid()))


def remembered(name: str, here: World) -> bool:
    """Whether the first rank was here before torchrun started the processes anew. It alone knows; the others follow it.

    torchrun counts restarts on each machine by itself: one that has only joined again has seen none.
    """
    key, found = f"vlhmm/remembered/{name}", False
    if launched() and dist.is_initialized() and here.is_first and _lasting_store().check([key]):
        found = _lasting_store().get(key).decode() != _process(os.getpid())
    return broadcast_object(found, here, "the question whether this is a restart")


@cache
def _process(pid: int) -> str:
    """This process, as no other on any machine is called; `pid`: a fork is another one."""
    return uuid.uuid4().hex


def world() -> World:
    """Of the present process group; `ALONE` where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    local_rank, local_size = (int(os.environ.get(f"LOCAL_{name}", "0")) for name in ("RANK", "WORLD_SIZE"))
    return World(dist.get_rank(), dist.get_world_size(), local_rank, max(1, local_size))


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
        # Its functions have the group of the moment of their import as a default, and would hold it to the end of Python.
        import_module("torch.distributed.nn.functional")
        time_limit = chosen_time_limit() if time_limit is None else time_limit
        limit = timedelta(seconds=time_limit)
        store, rank, size = next(rendezvous("env://", timeout=limit))
        attempt = _attempt(store, rank, size, time_limit)
        own = dist.distributed_c10d.PrefixStore(attempt, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=limit)
        if (reason := _final_error(attempt)) is not None:
            dist.destroy_process_group()
            raise OtherRankError(reason)
    here = world()
    if here.size > 1 and "cpu" not in str(dist.get_backend_config()):
        raise ValueError(
            f"the process group's backend is {dist.get_backend()!r}, which moves no CPU tensors: make it by "
            'init_process_group("cpu:gloo,cuda:nccl")'
        )
    if here.size > 1:
        # Now that all of them are here.
        _patience(dist.group.WORLD)
    try:
        yield here
    except (Exception, KeyboardInterrupt) as error:
        if here.size > 1 and owner:
            _claim(here, error, attempt)
        raise
    finally:
        if owner:
            # Groups that are still held when Python ends are torn down after it, while their threads hold tensors of it: the
            # process is aborted then, now and again.
            _end_patience()
            dist.destroy_process_group()


def _attempt(store: Any, rank: int, size: int, time_limit: float) -> str:
    """What these processes alone know: the store of torchrun outlives them, and holds the addresses of those before them.

    Every other rank says hello by a name of its own, and the first answers that name, so that nothing old is taken for an answer.
    """
    # That of the first rank tells its process, which lives as long as those of the others.
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
            raise LostRankError(f"{_named(missing)} did not start within {time_limit:.0f} s")
        for other in missing:
            if store.check([f"vlhmm/hello/{other}"]):
                store.set(f"vlhmm/answer/{store.get(f'vlhmm/hello/{other}').decode()}", own)
        missing = [other for other in missing if not store.check([f"vlhmm/heard/{own}/{other}"])]
        time.sleep(POLL_SECONDS)
    return own


def _is_final(error: BaseException) -> bool:
    """It would come again in processes that torchrun starts anew."""
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in TRANSIENT
    return isinstance(error, ValueError | FinalError)


def _final_error(attempt: str) -> str | None:
    """That of processes before these."""
    if not _lasting_store().check([FINAL]):
        return None
    process, _, reason = _lasting_store().get(FINAL).decode().partition(" ")
    return None if process == attempt.partition(".")[0] else str(reason)


def _claim(here: World, error: BaseException, attempt: str) -> None:
    """The first rank that comes here raises its own error; in the others this raises that one's."""
    if isinstance(error, OtherRankError):
        return
    try:
        # The store lives in torchrun, and so longer than any rank.
        if _store().add("vlhmm/failed", 1) == 1:
            if _is_final(error):
                _lasting_store().set(FINAL, f"{attempt.partition('.')[0]} rank {here.rank}: {error}")
            _store().set("vlhmm/error", f"rank {here.rank}: {error}")
            return
        _store().wait(["vlhmm/error"], timedelta(seconds=ROLL_CALL_SECONDS))
        other = _other_rank_error()
    except RuntimeError:
        # No other rank is left.
        return
    raise other from error


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _lasting_store() -> Any:
    """Beneath that of these processes: the one of torchrun itself."""
    store = _store()
    while isinstance(store, dist.distributed_c10d.PrefixStore):
        store = store.underlying_store
    return store


def _other_rank_error() -> OtherRankError:
    return OtherRankError(_store().get("vlhmm/error").decode())


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
        store = _store()
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
    named = _named(absent) if absent else "another rank"
    where = what and f" in {what}"
    if timed_out:
        return LostRankError(
            f"{named} did not answer for {waited:.0f} s{where}: it hangs, or the time limit is too short"
        )
    return LostRankError(f"{named} was lost{where}: it was killed, or its machine cannot be reached")


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def shard(items: Items, here: World) -> Items:
    """This rank's part of `items`, a sequence that can be sliced: parts follow one another in the order of ranks, and their sizes
    differ by one at most.

    Example:
        >>> from vlhmm.distributed import World, shard
        >>> [list(shard(range(5), World(rank, 3))) for rank in range(3)]
        [[0], [1, 2], [3, 4]]
    """
    first, end = (len(items) * rank // here.size for rank in (here.rank, here.rank + 1))
    return cast("Items", items[first:end])


def sum_in_order(values: Tensor, here: World, what: str = "") -> Tensor:
    """The sum of all ranks' `values`, which have one shape, added in the order of ranks: the same bits on each, every time."""
    if here.size == 1:
        return values
    own = values.detach().cpu().contiguous().view(-1)
    total = torch.empty_like(own)
    for first in range(0, own.numel(), SUMMED_AT_ONCE):
        part = own[first : first + SUMMED_AT_ONCE]
        parts = [torch.empty_like(part) for _ in range(here.size)]
        with collective(here, what):
            dist.all_gather(parts, part)
        summed = parts[0]
        for other in parts[1:]:
            summed += other
        total[first : first + SUMMED_AT_ONCE] = summed
    return total.view(values.shape).to(values.device)


def gather_objects(value: Value, here: World, what: str = "") -> list[Value]:
    """Every rank's `value`, in the order of ranks."""
    if here.size == 1:
        return [value]
    values: list[Any] = [None] * here.size
    with collective(here, what):
        dist.all_gather_object(values, value)
    return values


def gather_when_done(value: Value, here: World, what: str) -> list[Value]:
    """`gather_objects` after work of unequal length: ranks wait for the slowest as long as it takes, unless it is lost or gives
    no sign of life."""
    _wait_for_slow(here, what)
    return gather_objects(value, here, what)


def broadcast_object(value: Value, here: World, what: str = "") -> Value:
    """The first rank's `value`."""
    if here.size == 1:
        return value
    values = [value]
    with collective(here, what):
        dist.broadcast_object_list(values, 0)
    return values[0]


class SentTensors(Mapping[str, Tensor]):
    """The first rank's tensors by name, whatever the others give, each of them sent in parts when it is asked for: ranks ask for the
    same ones in the same order, and need no memory for the others."""

    def __init__(self, tensors: Mapping[str, Tensor], here: World, what: str = "") -> None:
        self._own, self._here, self._what = tensors, here, what
        self._like = broadcast_object({name: (one.shape, one.dtype) for name, one in tensors.items()}, here, what)
        self._device = torch.device("cpu")

    def on(self, device: torch.device) -> SentTensors:
        """They arrive there, and lie nowhere else as wholes."""
        sent = copy.copy(self)
        sent._device = device
        return sent

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._like:
            raise KeyError(name)
        shape, dtype = self._like[name]
        first = self._here.is_first
        whole = self._own[name].detach() if first else torch.empty(shape, dtype=dtype, device=self._device)
        flat = whole.reshape(-1)
        for begin in range(0, flat.numel(), SUMMED_AT_ONCE):
            part = flat[begin : begin + SUMMED_AT_ONCE]
            sent = part.cpu().contiguous() if first else torch.empty(part.shape, dtype=dtype)
            with collective(self._here, self._what):
                dist.broadcast(sent, 0)
            if not first:
                part.copy_(sent)
        return whole.to(self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._like)

    def __len__(self) -> int:
        return len(self._like)


def broadcast_tensors(tensors: Mapping[str, Tensor], here: World, what: str = "") -> dict[str, Tensor]:
    """The first rank's tensors, whatever the others give; on the CPU."""
    return dict(tensors) if here.size == 1 else dict(SentTensors(tensors, here, what))


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
    """What it takes to wait for a slow rank, and not for one that is gone."""

    group: dist.ProcessGroup
    """The same ranks, without a time limit: they hear at once of a rank that is lost, and never of one that is slow."""
    heartbeat: Heartbeat


@cache
def _patience(whole: Any) -> _Patience:
    group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timedelta(days=365)))
    return _Patience(group, Heartbeat(_store(), dist.get_rank(), group_time_limit()))


def _end_patience() -> None:
    if _patience.cache_info().currsize:
        _patience(dist.group.WORLD).heartbeat.end()
    _patience.cache_clear()


# Those who own their process group may hold it to the end.
atexit.register(_patience.cache_clear)


def group_time_limit() -> float:
    """Seconds that the ranks of the present process group wait for each other."""
    options = cast("Any", dist.group.WORLD)._get_backend(torch.device("cpu")).options
    return float(options._timeout.total_seconds())


def _wait_for_slow(here: World, what: str) -> None:
    """Until all ranks are here, as long as those that are missing give signs of life."""
    if here.size == 1:
        return
    group, limit = _patience(dist.group.WORLD).group, group_time_limit()
    watch = Watch(_store(), [rank for rank in range(here.size) if rank != here.rank], limit)
    with collective(here, what):
        waiting = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
        try:
            while not _ended_within(waiting, min(PATIENT_SECONDS, beat_seconds(limit))):
                if silent := watch.silent():
                    raise LostRankError(
                        f"{_named(silent)} gave no sign of life for {limit:.0f} s{what and f' in {what}'}: "
                        "the process is stopped, or its machine cannot be reached"
                    )
        except BaseException:
            if not waiting.is_completed():
                # It cannot be called off, and whoever takes the group down would wait for it.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            raise


def _ended_within(work: Any, seconds: float) -> bool:
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        # It has failed, or has ended meanwhile.
        work.wait()
    return True


def all_rows(rows: Tensor, here: World, what: str = "") -> Tensor:
    """Every rank's rows beneath one another, in the order of ranks."""
    if here.size == 1:
        return rows
    return torch.cat(gather_objects(rows.detach().cpu(), here, what)).to(rows.device)


def rows_on_first(rows: Tensor, sizes: Sequence[int], here: World, what: str = "") -> Tensor:
    """Every rank's rows beneath one another on the CPU of the first, `sizes` of each rank; the others get their own back."""
    if here.size == 1:
        return rows
    if here.is_first:
        parts = [rows.detach().cpu(), *(torch.empty(size, *rows.shape[1:], dtype=rows.dtype) for size in sizes[1:])]
    else:
        parts = [rows.detach().cpu().contiguous()]
    with collective(here, what):
        for rank, part in enumerate(parts):
            for piece in part.split(SUMMED_AT_ONCE):
                if not here.is_first:
                    dist.send(piece, 0)
                elif rank > 0:
                    dist.recv(piece, rank)
    return torch.cat(parts) if here.is_first else rows


def share_rows(whole: Tensor, ends: Sequence[int], here: World, what: str = "") -> None:
    """Gives all ranks all rows of `whole`, of which rank r has those from ends[r - 1] to ends[r]."""
    if here.size == 1:
        return
    at_once = max(1, SUMMED_AT_ONCE // max(1, whole[:1].numel()))
    for rank, (begin, end) in enumerate(pairwise([0, *ends])):
        for first in range(begin, end, at_once):
            rows = slice(first, min(first + at_once, end))
            part = whole[rows].cpu().contiguous()
            with collective(here, what):
                dist.broadcast(part, rank)
            if rank != here.rank:
                whole[rows] = part.to(whole.device)


def any_rank(flags: Sequence[bool], here: World, what: str = "") -> list[bool]:
    """For each flag, whether it is set on any rank."""
    if here.size == 1:
        return list(flags)
    with collective(here, what):
        return decided(flags)


def decided(flags: Sequence[bool]) -> list[bool]:
    """`any_rank` in the process group that there is, be it of one."""
    told = torch.tensor(flags, dtype=torch.uint8)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return [bool(flag) for flag in told]


def barrier(here: World, what: str = "") -> None:
    """Until all ranks are here."""
    if here.size > 1:
        with collective(here, what):
            dist.barrier()


def require_alike(values: Mapping[str, Any], here: World) -> None:
    """Refuses to begin if ranks differ in any of these values, which are settings, versions or hashes.

    Example:
        >>> from vlhmm.distributed import ALONE, require_alike
        >>> require_alike({"vlhmm": "0.1"}, ALONE)
    """
    every = gather_objects({name: repr(value) for name, value in values.items()}, here, "the comparison of settings")
    for rank, others in enumerate(every):
        for name in values:
            if others.get(name) != every[0].get(name):
                raise ValueError(
                    f"{name} is {every[0].get(name)} on rank 0, but {others.get(name)} on rank {rank}: "
                    "start all ranks with the same code, settings and text"
                )
