"""Sharding of the optimizer's state over ranks (as ZeRO stage 1): each rank updates its part of every large parameter, then broadcasts it.

Weights and gradients are whole on every rank; the state, two numbers a weight, is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from vlhmm.distributed import World, barrier, collective, rows_on_first, shard
from vlhmm.memory import available_bytes

SHARDED_FROM = 1 << 28
"""Parameters of a model from which on ranks share the state: with fewer it takes less memory than the work of a step."""
LARGE = 1 << 20
"""Numbers of a parameter that is parted; the state of others is on every rank."""


class OwnParts:
    """The parameters that this rank updates: its shard of every large one, and all small ones whole."""

    def __init__(self, parameters: Sequence[nn.Parameter], here: World, group: dist.ProcessGroup | None) -> None:
        self._here, self._group = here, group
        self._part_of = {parameter: self._begin(parameter) for parameter in parameters}

    def _begin(self, parameter: nn.Parameter) -> Tensor:
        if parameter.numel() < LARGE:
            return parameter
        own = self._range(parameter.numel(), self._here.rank)
        return parameter.detach().view(-1)[own.start : own.stop]

    def _range(self, numel: int, rank: int) -> range:
        return shard(range(numel), World(rank, self._here.size))

    def of(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """What the optimizer is given in their place."""
        return [self._part_of[parameter] for parameter in parameters]

    def take_gradients(self) -> None:
        """Sets the gradients of the parts: views of the gradients of the whole parameters."""
        for parameter, part in self._part_of.items():
            if part is not parameter and parameter.grad is not None:
                own = self._range(parameter.numel(), self._here.rank)
                part.grad = parameter.grad.view(-1)[own.start : own.stop]

    def share(self, what: str) -> None:
        """Each rank broadcasts the parts that it has updated."""
        for parameter, part in self._part_of.items():
            if part is parameter:
                continue
            whole = parameter.detach().view(-1)
            for rank in range(self._here.size):
                rows = self._range(whole.numel(), rank)
                with collective(self._here, what):
                    dist.broadcast(whole[rows.start : rows.stop], rank, group=self._group)

    def whole(self, number: int, value: Tensor, what: str) -> Tensor:
        """State of the optimizer's parameter of that number: as if one rank had all of it, on the first; this rank's on others."""
        parameter, part = self._pair(number)
        if part is parameter or value.shape != part.shape:
            return value
        sizes = [len(self._range(parameter.numel(), rank)) for rank in range(self._here.size)]
        found = rows_on_first(value, sizes, self._here, what)
        return found.view(parameter.shape) if self._here.is_first else found

    def own(self, number: int, value: Tensor) -> Tensor:
        """This rank's part of what `whole` gave."""
        parameter, part = self._pair(number)
        if part is parameter or value.shape != parameter.shape:
            return value
        rows = self._range(parameter.numel(), self._here.rank)
        return value.reshape(-1)[rows.start : rows.stop].clone()

    def _pair(self, number: int) -> tuple[nn.Parameter, Tensor]:
        return list(self._part_of.items())[number]


def bytes_of_training(parameters: Sequence[Tensor], ranks: int, averaged: bool, sharded: bool) -> int:
    """What a rank holds besides the weights: gradients as they are made and as they are sent, the optimizer's state, the best
    weights so far, their average."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return weights * (3 + averaged) + 2 * weights // (ranks if sharded else 1)


def require_fitting(parameters: Sequence[Tensor], here: World, averaged: bool, sharded: bool) -> None:
    """Refuses a training that does not fit beside the weights, with the number of ranks that would do. What the work of a step takes
    is not counted."""
    device = parameters[0].device
    needed, available = bytes_of_training(parameters, here.size, averaged, sharded), available_bytes(device)
    if device.type == "cpu":
        # Ranks of one machine share its memory. The barrier makes sure that none allocates before all have read what is available.
        available //= here.local_size
    barrier(here, "the check of memory")
    if needed <= available:
        return
    num = sum(parameter.numel() for parameter in parameters)
    enough = 2 * here.size
    while enough < 1 << 16 and bytes_of_training(parameters, enough, averaged, sharded) > available:
        enough *= 2
    remedy = f"start {enough} ranks, or make" if sharded and enough < 1 << 16 else "no number of ranks is enough: make"
    shared = (
        f", of which {here.local_size} ranks have a part each" if here.local_size > 1 and device.type == "cpu" else ""
    )
    raise ValueError(
        f"training {num:,} parameters on {here.size} ranks takes {needed / 2**30:,.1f} GiB on each besides the weights, but "
        f"{available / 2**30:,.1f} GiB are available on {device}{shared}: {remedy} the model smaller"
    )
