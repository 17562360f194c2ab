"""The laws of `vlhmm.distributed`, on each rank of a world: test_distributed.py starts it by torchrun, and by forks."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import vlhmm.distributed.collectives
from vlhmm.distributed import (
    SentTensors,
    World,
    any_rank,
    barrier,
    broadcast_object,
    broadcast_tensors,
    first_does,
    gather_objects,
    joined,
    require_alike,
    shard,
    sum_in_order,
    world,
)


def all_hold(here: World) -> None:
    local = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    assert world() == here == World(dist.get_rank(), dist.get_world_size(), *local)
    with joined() as inner:
        assert inner == here
    # The block inside has not left the group of the block outside.
    assert gather_objects(here.rank, here) == list(range(here.size))

    # 1 + eps - 1 and eps + 1 - 1 differ: the order of the sum is that of the ranks.
    terms = [1e-17, 1.0, -1.0, 3e-17]
    expected = torch.tensor(0.0, dtype=torch.float64)
    for rank in range(here.size):
        expected = expected + terms[rank]
    every = torch.full((3, 5), terms[here.rank], dtype=torch.float64)
    assert torch.equal(sum_in_order(every, here), expected.expand(3, 5))
    assert sum_in_order(torch.tensor(here.rank), here).item() == sum(range(here.size))
    assert sum_in_order(torch.empty(0, 2), here).shape == (0, 2)
    # A view with gaps, larger than what is summed at once.
    vlhmm.distributed.collectives.SUMMED_AT_ONCE = 4
    wide = torch.arange(22.0).view(2, 11)[:, ::2] * (here.rank + 1)
    assert torch.equal(sum_in_order(wide, here), wide / (here.rank + 1) * sum(range(1, here.size + 1)))

    assert broadcast_object({"from": here.rank}, here) == {"from": 0}
    given = {"a": torch.full((2, 3), float(here.rank)), "none": torch.zeros(0, 4), "one": torch.tensor(here.rank)}
    sent = broadcast_tensors(given if here.is_first else {}, here)
    assert sent["a"].tolist() == [[0.0] * 3] * 2
    assert sent["none"].shape == (0, 4)
    assert sent["one"].item() == 0

    # In parts of 4 numbers; only what is asked for.
    lazily = SentTensors({"a": wide, "b": torch.arange(9), "flag": torch.tensor(True)} if here.is_first else {}, here)
    assert list(lazily) == ["a", "b", "flag"]
    assert lazily["b"].tolist() == list(range(9))
    assert torch.equal(lazily["a"] * (here.rank + 1), wide)
    assert lazily.on(torch.device("cpu"))["flag"].item() is True

    parts = gather_objects(list(shard(range(7), here)), here)
    assert [item for part in parts for item in part] == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1

    assert any_rank([here.rank == here.size - 1, False, True], here) == [True, False, True]
    assert first_does(lambda: time.sleep(0.2) or dist.get_rank(), here) == 0
    barrier(here)
    require_alike({"seed": 1, "hash": "ab"}, here)


def nothing_is_left() -> None:
    """Threads of gloo that Python's end finds abort the process, now and again."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name]


if __name__ == "__main__":
    with joined() as world_of_torchrun:
        all_hold(world_of_torchrun)
        # It imports what would hold the process group.
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    nothing_is_left()
    print("all hold")
