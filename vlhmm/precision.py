"""Precision: what the matrix products on a GPU read. The caller passes it as a `Numerics`.

Kernels are told at each call. The products of networks are those of cuBLAS, and what it reads of float32 is a setting of the whole
process, looked at when a product is launched or captured: `float32_products` owns it. A graph that is replayed needs none of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["bf16", "tf32", "highest"]
"""The operands of matrix products on a GPU; highest: float32. tf32: those of the recursion and of gradients; networks read float32, and
logits are made of operands split in two. Sums and messages are float32 always, and a CPU, or float64 anywhere, computes in the
tensors' own type."""


@dataclass(frozen=True)
class Numerics:
    """What matrix products on a GPU read: while a model makes tables, and while inference reads them.

    The default, float32 throughout, is for tables that answer queries. A CPU, or float64 anywhere, computes in the dtype of the
    tensors, whatever is said here.

    Example:
        >>> vlhmm.Numerics()
        Numerics(tables='highest', recursion='highest')
        >>> vlhmm.Numerics.training("bf16")
        Numerics(tables='bf16', recursion='bf16')
    """

    tables: Precision = "highest"
    """Networks and emissions."""
    recursion: Precision = "highest"
    """Tiles of the transition with their normaliser, and messages; it becomes `Tables.precision`."""

    @classmethod
    def training(cls, precision: Precision) -> Numerics:
        """Make the numerics of a training step: one precision for all of it.

        Args:
            precision: bf16, tf32 or highest.

        Returns:
            The numerics.

        Example:
            >>> vlhmm.Numerics.training("tf32").recursion
            'tf32'
        """
        return cls(precision, precision)


EXACT = Numerics()
"""Of tables that are kept: logits grow in training until rounded features change a perplexity by percents."""

_Setting = Literal["high", "highest"]

_changed = threading.Condition()
_waiting: deque[object] = deque()
"""FIFO queue of waiting threads."""
_holders = 0
_setting: _Setting = "highest"
"""Setting of the threads that hold it."""
_before = ""
"""Setting when no thread holds it."""
_of_this_thread = threading.local()


@contextmanager
def float32_products(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within, cuBLAS products of float32 on a GPU read float32 for the highest precision, else tf32.

    Threads that want the same have it together, others wait their turn. So it is taken around a step or a window, never across
    a `yield`; within it a graph may be captured, but it is not taken within a capture. It is not taken in the backward pass either,
    which PyTorch walks for all threads in one of its own: `backward` is called within.
    """
    if device.type != "cuda":
        yield
        return
    wanted: _Setting = "highest" if precision == "highest" else "high"
    held: _Setting | None = getattr(_of_this_thread, "setting", None)
    if held is not None:
        if held == "high" and wanted == "highest":
            raise RuntimeError(
                "products of the highest precision within others of tf32: the other threads' would change too"
            )
        yield
        return
    _take(wanted)
    _of_this_thread.setting = wanted
    try:
        yield
    finally:
        _of_this_thread.setting = None
        _give_back()


def network_products(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """`float32_products` for the networks of a model of this precision: tf32 for bf16, else float32.

    They are a small part of the work, but operands of tf32 in them would be the larger part of that precision's error.
    """
    return float32_products("tf32" if precision == "bf16" else "highest", device)


def _take(wanted: _Setting) -> None:
    global _holders, _setting, _before
    turn = object()
    with _changed:
        _waiting.append(turn)
        try:
            _changed.wait_for(lambda: _waiting[0] is turn and (_holders == 0 or _setting == wanted))
            if _holders == 0:
                _before, _setting = torch.get_float32_matmul_precision(), wanted
                torch.set_float32_matmul_precision(wanted)
            _holders += 1
        finally:
            _waiting.remove(turn)
            # The next may want the same.
            _changed.notify_all()


def _give_back() -> None:
    global _holders
    with _changed:
        _holders -= 1
        if _holders == 0:
            torch.set_float32_matmul_precision(_before)
        _changed.notify_all()
