"""What a step over several ranks costs: what one takes alone, and the sum of the gradients between them.

Weak scaling: every rank has the same number of tokens, whatever their number is. The efficiency is the part of a step that is
not spent on the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Link:
    """The link between neighbours in a ring all-reduce: latency and bandwidth."""

    latency: float
    """Seconds of a message without content."""
    bytes_per_second: float
    """That one rank sends while it receives as many."""

    def all_reduce(self, ranks: int, num_bytes: float) -> float:
        """Seconds of a ring: each rank sends 2 (N - 1) messages of an N-th of the buffer."""
        messages = 2 * (ranks - 1)
        return messages * (self.latency + num_bytes / ranks / self.bytes_per_second) if ranks > 1 else 0.0

    @classmethod
    def fitted(cls, ranks: int, measured: Sequence[tuple[int, float]]) -> Link:
        """The latency and bandwidth that come nearest to measured (bytes, seconds), relative to each."""
        messages = 2 * (ranks - 1)
        seconds = np.array([value for _, value in measured]) / messages
        shares = np.array([num_bytes / ranks for num_bytes, _ in measured])
        columns = np.stack([np.ones_like(shares), shares], 1) / seconds[:, None]
        latency, per_byte = np.linalg.lstsq(columns, np.ones_like(seconds), rcond=None)[0]
        return cls(max(0.0, float(latency)), 1 / max(float(per_byte), 1e-15))


@dataclass(frozen=True)
class Cluster:
    """Machines of several GPUs each."""

    name: str
    machines: int
    gpus: int
    """Of a machine."""
    inside: Link
    """Between the GPUs of a machine."""
    between: Link
    """Between machines, all GPUs of one together."""

    @property
    def ranks(self) -> int:
        return self.machines * self.gpus

    def all_reduce(self, num_bytes: float) -> float:
        """Within machines first and last, and between them what that leaves; NCCL's trees and rings do as much."""
        return self.inside.all_reduce(self.gpus, num_bytes) + self.between.all_reduce(self.machines, num_bytes)


NVLINK = Link(latency=2e-6, bytes_per_second=360e9)
"""Of an H200: 450 GB/s each way, of which NCCL's sums of large buffers reach four fifths."""
ETHERNET = Link(latency=20e-6, bytes_per_second=0.9 * 12.5e9)
"""100 Gbit/s, of which large messages reach nine tenths."""
CLUSTERS = (
    Cluster("8 H200 of one machine, NVLink", 1, 8, NVLINK, ETHERNET),
    Cluster("8 machines of 1 H200, 100 Gbit/s", 8, 1, NVLINK, ETHERNET),
    Cluster("8 machines of 8 H200, 100 Gbit/s", 8, 8, NVLINK, ETHERNET),
)


@dataclass(frozen=True)
class Predicted:
    cluster: str
    tokens: int
    """Of each GPU in a step."""
    compute_ms: float
    reduce_ms: float
    """The sum over ranks, and the copies before it."""

    @property
    def efficiency(self) -> float:
        return self.compute_ms / (self.compute_ms + self.reduce_ms)


def predicted(cluster: Cluster, tokens: int, compute_ms: float, num_bytes: int, copy_ms: float) -> Predicted:
    """`compute_ms`: of a step of one process; `num_bytes`: of its gradients; `copy_ms`: to put them side by side."""
    return Predicted(cluster.name, tokens, compute_ms, 1e3 * cluster.all_reduce(num_bytes) + copy_ms)


def enough_tokens(
    cluster: Cluster, steps: Sequence[tuple[int, float]], num_bytes: int, copy_ms: float, efficiency: float
) -> float:
    """From how many tokens a GPU on a step has that efficiency; steps: (tokens, milliseconds), at least two.

    Between two of them a token costs what their difference says; beyond the last, as between the last two.
    """
    needed = (1e3 * cluster.all_reduce(num_bytes) + copy_ms) * efficiency / (1 - efficiency)
    if needed <= steps[0][1]:
        return steps[0][0]
    pairs = list(pairwise(steps))
    (tokens, least), (more_tokens, most) = next((pair for pair in pairs if needed <= pair[1][1]), pairs[-1])
    return tokens + (more_tokens - tokens) * (needed - least) / (most - least)
