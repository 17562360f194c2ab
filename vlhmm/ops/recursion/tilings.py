"""How the work of the dense recursion is tiled on a GPU: which kernel walks over time, and what one of its programs makes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vlhmm.ops.recursion.product import PRODUCT_WIDENS
from vlhmm.ops.sizes import cdiv, multiprocessors, power_of_2
from vlhmm.precision import Precision

Method = Literal["resident", "persistent", "launches", "cublas"]
"""One kernel for all positions, each program with its part of the tile; the same, reading the tile at each step; that one launched
for each position; or a cuBLAS product and a kernel for the rest."""

MAX_PERSISTENT_STATES = 8192
"""Measured on one H200: 2.2 ms against 4.8 for 4,096 states where Python launches each product."""

MAX_PERSISTENT_STATES_IN_GRAPH = 1024
"""A graph's launches cost little: cuBLAS takes 0.85 ms against 1.16 for 2,048 states and 1.75 against 1.99 for 4,096; for
1,024 it takes 0.65 against 0.62."""


@dataclass(frozen=True)
class Tiling:
    """A program makes `rows` x `columns` of a message, in steps of `inner` source states."""

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


# Smallest first: the latency of a step is hidden best with one program for each multiprocessor (occupancy).
TILINGS = (
    Tiling(16, 32, 128, 4, 4),
    Tiling(32, 32, 128, 4, 4),
    Tiling(32, 64, 128, 4, 4),
    Tiling(64, 64, 128, 4, 4),
    Tiling(128, 64, 64, 8, 4),
    Tiling(128, 128, 64, 8, 4),
)

# All source states are taken at once. Measured on one H200, 200 sequences of 64: 512 states 0.27 ms forward and 0.35 back, where
# reading the tile at each step takes 0.36 and 0.41; 1,024 states 0.49 and 0.58 instead of 0.62 and 0.72.
RESIDENT_TILINGS: tuple[Tiling, ...] = (Tiling(16, 64, 0, 4, 1), Tiling(32, 64, 0, 8, 1))

SPARE_BYTES = 4 << 10
"""Of a program's shared memory, beside its part of the tile and a message."""

CUBLAS_TILING = Tiling(4, 512, 16, 4, 1)
"""Where cuBLAS makes the product, a program has only whole rows to read and write."""


_OF_THIS_THREAD = threading.local()


@contextmanager
def no_cooperative_kernels() -> Iterator[None]:
    """Within it this thread launches only kernels without grid barriers, which end whatever else runs on the device.

    The programs of a cooperative kernel wait for each other, so all must be resident at once. If several threads launch such kernels,
    each may hold multiprocessors that another needs: a deadlock.
    """
    before = not cooperative_kernels_allowed()
    _OF_THIS_THREAD.no_cooperative_kernels = True
    try:
        yield
    finally:
        _OF_THIS_THREAD.no_cooperative_kernels = before


def cooperative_kernels_allowed() -> bool:
    """Whether this thread may launch cooperative kernels, whose programs wait for each other at grid barriers."""
    return not getattr(_OF_THIS_THREAD, "no_cooperative_kernels", False)


def meet(programs: int, device: torch.device) -> bool:
    """Whether so many programs, one for each multiprocessor, are resident at once, and this thread may launch cooperative kernels."""
    return device.type == "cuda" and cooperative_kernels_allowed() and programs <= multiprocessors(device)


def method_for(size: int, states: int, device: torch.device, precision: Precision, *, in_graph: bool = False) -> Method:
    """The fastest method; `in_graph`: in a CUDA graph, where launches cost little."""
    if not cooperative_kernels_allowed():
        return "cublas" if precision == "bf16" and PRODUCT_WIDENS else "launches"
    if _resident_tiling(size, states, device, precision) is not None:
        return "resident"
    if precision != "bf16" or not PRODUCT_WIDENS:
        # cuBLAS has no precision setting for a single product, only for the whole process.
        return "persistent" if states <= MAX_PERSISTENT_STATES else "launches"
    return (
        "persistent" if states <= (MAX_PERSISTENT_STATES_IN_GRAPH if in_graph else MAX_PERSISTENT_STATES) else "cublas"
    )


def _resident_tiling(size: int, states: int, device: torch.device, precision: Precision) -> Tiling | None:
    """The smallest with which all programs are resident at once and hold their part of the tile in shared memory."""
    if precision != "bf16":
        return None
    sources = max(16, power_of_2(states))
    for tiling in RESIDENT_TILINGS:
        programs = cdiv(size, tiling.rows) * cdiv(states, tiling.columns)
        held = 2 * sources * (tiling.rows + tiling.columns)
        if programs <= multiprocessors(device) and held + SPARE_BYTES <= _shared_bytes(device):
            return tiling
    return None


def tiling_for(size: int, states: int, device: torch.device, precision: Precision, method: Method) -> Tiling:
    """The smallest whose programs are all resident at once (one wave), else the largest."""
    if method == "cublas":
        return CUBLAS_TILING
    if method == "resident":
        return _resident_tiling(size, states, device, "bf16") or RESIDENT_TILINGS[-1]
    programs = multiprocessors(device)
    fitting = (one for one in TILINGS if cdiv(size, one.rows) * cdiv(states, one.columns) <= programs)
    tiling = next(fitting, TILINGS[-1])
    if precision == "bf16":
        return tiling
    # Operands twice as wide: half as many source states at a time fit into shared memory.
    return replace(tiling, inner=tiling.inner // 2)


def _shared_bytes(device: torch.device) -> int:
    """The shared memory that one program may allocate."""
    # The amount that every GPU has: for builds of PyTorch that do not report it.
    everywhere = 48 << 10
    if device.type != "cuda":
        return everywhere
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", everywhere)
