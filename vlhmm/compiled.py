"""Loops compiled by numba, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def numba_installed() -> bool:
    return find_spec("numba") is not None


def compiled(fastmath: bool | set[str] = False, inline: bool = False) -> Any:
    """numba's `njit`: it releases Python's lock, and caches on disk, beside the file or in the user's cache folder, where it can.

    `inline`: into every caller. A call costs as much as a position of a few states, since arrays are counted.
    """
    from numba import njit

    def compile_lazily(function: Any) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "forceinline": inline}
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            # Neither folder can be written.
            return njit(**options)(function)

    return compile_lazily
