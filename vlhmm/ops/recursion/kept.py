"""A cache of results that depend on one table alone, for further queries of the same table.

Entries are held by weak references to the table, and recomputed when its version counter has changed (in-place updates).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Made = TypeVar("Made")

MAX_BYTES = 1 << 26
"""Of a larger table nothing is kept: what is made of it is as large again, each time."""

_KEPT = WeakTensorKeyDictionary()


def kept(log_tiles: Tensor, what: str, make: Callable[[], Made]) -> Made:
    """Cached `make(log_tiles)`; do not modify."""
    table = log_tiles if log_tiles._base is None else log_tiles._base
    # Inference tensors have no version counter.
    if table.is_inference() or log_tiles.nbytes > MAX_BYTES:
        return make()
    mark = log_tiles.data_ptr(), log_tiles.shape, log_tiles.stride(), log_tiles.dtype, table._version
    entry: tuple[Any, dict[str, Made]] | None = _KEPT.get(table)
    if entry is None or entry[0] != mark:
        entry = mark, {}
        _KEPT[table] = entry
    if what not in entry[1]:
        entry[1][what] = make()
    return entry[1][what]
