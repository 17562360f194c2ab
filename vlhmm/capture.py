"""Work on a GPU as a CUDA graph, also while other threads use the same GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

_ONE_AT_A_TIME = threading.Lock()
_OF_THIS_THREAD = threading.local()


def captured(
    work: Callable[[], object],
    generator: torch.Generator | None = None,
    *,
    in_memory_of: torch.cuda.CUDAGraph | None = None,
) -> torch.cuda.CUDAGraph:
    """A graph that does `work`, which must neither wait for the device nor change its shapes; `generator` is drawn from.

    `in_memory_of`: another graph that never runs at the same time, and that leaves nothing in its memory to be read later.

    A thread captures on a stream of its own, one on each device: the matrix library keeps one workspace a stream, and two graphs
    that share one spoil each other's products when they run side by side.
    """
    streams: dict[int, torch.cuda.Stream] = _OF_THIS_THREAD.__dict__.setdefault("streams", {})
    device = torch.cuda.current_device()
    if device not in streams:
        streams[device] = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with _ONE_AT_A_TIME:
        torch.cuda.synchronize()
        # What other threads do meanwhile does not go into the graph and is no reason to refuse it.
        pool = None if in_memory_of is None else in_memory_of.pool()
        with torch.cuda.graph(graph, pool, stream=streams[device], capture_error_mode="thread_local"):
            work()
    return graph
