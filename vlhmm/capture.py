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
    that share one spoil each other's products when they run side by side. It has the priority of the thread's present one, which
    goes into the graph.
    """
    streams: dict[tuple[int, int], torch.cuda.Stream] = _OF_THIS_THREAD.__dict__.setdefault("streams", {})
    own = torch.cuda.current_device(), torch.cuda.current_stream().priority
    if own not in streams:
        streams[own] = torch.cuda.Stream(priority=own[1])
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with _ONE_AT_A_TIME:
        torch.cuda.synchronize()
        # What other threads do meanwhile does not go into the graph and is no reason to refuse it.
        pool = None if in_memory_of is None else in_memory_of.pool()
        with torch.cuda.graph(graph, pool, stream=streams[own], capture_error_mode="thread_local"):
            work()
    return graph
