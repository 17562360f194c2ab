"""Several processes as one, by torch.distributed: torchrun starts them, gloo and NCCL carry what they tell each other.

`World` says which of them this one is; functions take it as an argument. A single process has no overhead: with `ALONE` each function
returns its argument. Objects travel by gloo between CPUs, as torch pickles them, and are never written to files.
"""

from vlhmm.distributed.collectives import (
    SentTensors,
    all_rows,
    any_rank,
    barrier,
    broadcast_object,
    broadcast_tensors,
    decided,
    gather_objects,
    require_alike,
    rows_on_first,
    share_rows,
    sum_in_order,
)
from vlhmm.distributed.faults import FinalError, LostRankError, OtherRankError, collective
from vlhmm.distributed.joining import NCCL_EXTRA_SECONDS, chosen_time_limit, joined, remember, remembered
from vlhmm.distributed.ranks import ALONE, World, launched, shard, world
from vlhmm.distributed.waiting import first_does, first_yields, gather_when_done, group_time_limit

__all__ = [
    "ALONE",
    "NCCL_EXTRA_SECONDS",
    "FinalError",
    "LostRankError",
    "OtherRankError",
    "SentTensors",
    "World",
    "all_rows",
    "any_rank",
    "barrier",
    "broadcast_object",
    "broadcast_tensors",
    "chosen_time_limit",
    "collective",
    "decided",
    "first_does",
    "first_yields",
    "gather_objects",
    "gather_when_done",
    "group_time_limit",
    "joined",
    "launched",
    "remember",
    "remembered",
    "require_alike",
    "rows_on_first",
    "shard",
    "share_rows",
    "sum_in_order",
    "world",
]
