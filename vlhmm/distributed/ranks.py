"""Which of several processes this one is, and its part of the work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor

Items = TypeVar("Items", bound=Sequence[Any] | Tensor)


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


def launched() -> bool:
    """torchrun, or another launcher with the same environment variables, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def world() -> World:
    """Of the present process group; `ALONE` where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    local_rank, local_size = (int(os.environ.get(f"LOCAL_{name}", "0")) for name in ("RANK", "WORLD_SIZE"))
    return World(dist.get_rank(), dist.get_world_size(), local_rank, max(1, local_size))


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
