"""CUDA graphs where there is no GPU: what is captured is the work itself, done at each replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


class WorkAgain:
    """In place of a CUDA graph: does its work whenever it is replayed, not when it is captured."""

    made: list[WorkAgain]
    """All since `graphs_on_cpu`."""

    def __init__(
        self,
        work: Callable[[], object],
        generator: torch.Generator | None = None,
        *,
        in_memory_of: WorkAgain | None = None,
    ) -> None:
        self.work, self.generator, self.in_memory_of, self.replays = work, generator, in_memory_of, 0
        self.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        self.work()


def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[WorkAgain]:
    """From now on work on a CPU is captured too; the graphs, as they are made."""
    made = list[WorkAgain]()
    monkeypatch.setattr(WorkAgain, "made", made, raising=False)
    monkeypatch.setattr("vlhmm.capture.may_capture", lambda device: True)
    monkeypatch.setattr("vlhmm.capture._capture_graph", WorkAgain)
    return made
