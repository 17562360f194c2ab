"""Work on a GPU as a CUDA graph, also while other threads use the same GPU: `Graphed` runs it eagerly a few times, captures it,
and replays it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

EAGER_CALLS = 3
"""Calls made before work is captured: they compile and load kernels, and make an optimizer's state."""

_ONE_AT_A_TIME = threading.Lock()
_OF_THIS_THREAD = threading.local()

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """Work cannot be a graph: it waits for the device, or does something else that a graph cannot hold."""


@dataclass
class _Captured(Generic[Result]):
    """The work of one key."""

    eager_left: int
    graph: torch.cuda.CUDAGraph | None = None
    result: Result | None = None
    """What the captured work returned, in the memory of the graph."""


class Graphed(Generic[Result]):
    """Work that is run eagerly a few times, then captured as a CUDA graph, then replayed; always eagerly on a CPU.

    The work reads and writes tensors of fixed place. It comes with each call and is not kept: an object that has a `Graphed` of
    its own methods would hold a GPU's memory until Python looks for cycles. Its result is returned; a replay returns what
    the captured work returned, tensors of fixed place again.

    Work differs by a key, as a rule the shape of what it reads: each key has its eager calls and its graph. The graphs of all keys
    use the same memory, so nothing that one leaves there may be read after another has run. Work in two parts, of which the second
    reads what the first returns, takes two of these; the second is called with `eagerly=not first.replayed`.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        enabled: bool = True,
        eager_calls: int = EAGER_CALLS,
        generator: torch.Generator | None = None,
        launching: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`enabled`: False: always eagerly. `generator`: what the work draws from. `launching`: what holds while the work is run or captured,
        and need not hold while it is replayed."""
        self._device, self._eager_calls = device, eager_calls
        self._generator, self._launching = generator, launching
        self._captured: dict[Hashable, _Captured[Result]] = {}
        self.enabled = enabled and may_capture(device)
        """Whether work is captured at all; an owner that finds that its work cannot be sets it to False."""
        self.replayed = False
        """Whether the last call replayed a graph."""

    def __call__(self, work: Callable[[], Result], key: Hashable = None, *, eagerly: bool = False) -> Result:
        """Runs the work, or the graph that does the same. `eagerly`: run it whatever was captured, as a call that does not count.

        Raises `CaptureError` if the work cannot be captured; none of it has been done then."""
        own = self._captured.setdefault(key, _Captured(self._eager_calls))
        self.replayed = self.enabled and not eagerly and own.eager_left == 0
        if not self.replayed:
            if not eagerly and own.eager_left > 0:
                own.eager_left -= 1
            with self._launching():
                return work()
        if own.graph is None:
            self._capture(work, own)
        assert own.graph is not None
        own.graph.replay()
        return own.result  # type: ignore[return-value]

    def _capture(self, work: Callable[[], Result], own: _Captured[Result]) -> None:
        def kept() -> None:
            own.result = work()

        # Share the pool of a live graph.
        others = (other.graph for other in self._captured.values() if other.graph is not None)
        with self._launching():
            try:
                own.graph = _capture_graph(kept, self._generator, in_memory_of=next(others, None))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise CaptureError(str(error)) from error

    def eager_left(self, key: Hashable = None) -> int:
        """The number of eager calls before the work is captured."""
        return self._captured[key].eager_left if key in self._captured else self._eager_calls

    def has_graph(self, key: Hashable = None) -> bool:
        """Whether there is a graph."""
        return key in self._captured and self._captured[key].graph is not None

    def forget(self) -> None:
        """Frees all graphs and their memory, and resets the counts."""
        if self._device.type == "cuda" and any(own.graph is not None for own in self._captured.values()):
            # Their memory is freed while nothing runs in it. A device-wide synchronisation is not allowed while another thread captures.
            torch.cuda.current_stream(self._device).synchronize()
        self._captured.clear()


def may_capture(device: torch.device) -> bool:
    """Whether work on this device can be a graph."""
    return device.type == "cuda"


def _capture_graph(
    work: Callable[[], object],
    generator: torch.Generator | None = None,
    *,
    in_memory_of: torch.cuda.CUDAGraph | None = None,
) -> torch.cuda.CUDAGraph:
    """A graph that does `work`, which must neither wait for the device nor change its shapes; `generator` is drawn from.

    `in_memory_of`: another graph that never runs at the same time, and that leaves nothing in its memory to be read later.

    A thread captures on a stream of its own, one on each device: cuBLAS keeps one workspace a stream, and two graphs
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
        # torch resets the generator's state in device memory on the capture stream (CUDAGeneratorState::capture_prologue). A replay sets it
        # on its own stream: without an order between the two the first replay may draw from offset 0 again.
        torch.cuda.current_stream().wait_stream(streams[own])
    return graph
