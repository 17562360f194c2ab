"""What ranks tell each other: objects by gloo between CPUs, as torch pickles them, and tensors in parts, never by files."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vlhmm.distributed.faults import collective
from vlhmm.distributed.ranks import World

Value = TypeVar("Value")

SUMMED_AT_ONCE = 1 << 22
"""Numbers of each rank."""


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


def broadcast_object(value: Value, here: World, what: str = "") -> Value:
    """The first rank's `value`."""
    if here.size == 1:
        return value
    values = [value]
    with collective(here, what):
        dist.broadcast_object_list(values, 0)
    return values[0]


class SentTensors(Mapping[str, Tensor]):
    """A lazy broadcast of the first rank's tensors by name: each is sent in chunks when it is accessed. All ranks must access the same
    ones in the same order, and need no memory for the others."""

    def __init__(self, tensors: Mapping[str, Tensor], here: World, what: str = "") -> None:
        self._own, self._here, self._what = tensors, here, what
        self._like = broadcast_object({name: (one.shape, one.dtype) for name, one in tensors.items()}, here, what)
        self._device = torch.device("cpu")

    def on(self, device: torch.device) -> SentTensors:
        """The tensors are received on this device, and nowhere else held whole."""
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
    """A barrier: returns when all ranks have called it."""
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
