"""Several memory-mapped texts as one array, without a concatenated copy on disk or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt


class JoinedIds:
    """Arrays of ids one after the other, read as one flat array is: by numbers, slices and arrays of numbers.

    Only the ids that are indexed are read. `numpy.asarray` reads all of it.

    Args:
        parts: The arrays.

    Attributes:
        dtype: Type of the ids.

    Example:
        >>> import numpy as np
        >>> from vlhmm.data.joined import JoinedIds
        >>> ids = JoinedIds([np.array([3, 1]), np.array([4])])
        >>> len(ids), ids[1:].tolist(), ids[[2, 0]].tolist()
        (3, [1, 4], [4, 3])
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any] | JoinedIds]) -> None:
        flat = (one for part in parts for one in (part._parts if isinstance(part, JoinedIds) else [part]))
        self._parts: list[npt.NDArray[Any]] = [np.asarray(part) for part in flat]
        self._begins = np.cumsum([0, *map(len, self._parts)], dtype=np.int64)
        self.dtype = np.result_type(*(part.dtype for part in self._parts))

    @property
    def ndim(self) -> int:
        """1."""
        return 1

    @property
    def shape(self) -> tuple[int]:
        """The number of ids."""
        return (len(self),)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._slice(*key.indices(len(self)))
        places = np.asarray(key)
        if places.dtype.kind not in "ui":
            raise IndexError(f"joined ids are read by whole numbers, not by {places.dtype}")
        flat = places.astype(np.int64, copy=False).reshape(-1)
        flat = np.where(flat < 0, flat + len(self), flat)
        if len(flat) and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"{len(self)} ids, but {flat.min()} to {flat.max()} are asked for")
        of_part = np.searchsorted(self._begins, flat, side="right") - 1
        found = np.empty(len(flat), self.dtype)
        for part in np.unique(of_part):
            chosen = of_part == part
            found[chosen] = self._parts[part][flat[chosen] - self._begins[part]]
        return found.reshape(places.shape)[()]

    def _slice(self, start: int, stop: int, step: int) -> npt.NDArray[Any]:
        if step != 1:
            found: npt.NDArray[Any] = self[np.arange(start, stop, step)]
            return found
        pieces = [
            part[max(start - begin, 0) : stop - begin]
            for part, (begin, end) in zip(self._parts, pairwise(self._begins.tolist()), strict=True)
            if begin < stop and start < end and start < stop
        ]
        # Within one part it is a view.
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def min(self, axis: None = None, out: None = None) -> Any:
        """Find the smallest id, part by part.

        Args:
            axis: None; `numpy.min` asks so.
            out: None.

        Returns:
            The id.

        Example:
            >>> import numpy as np
            >>> from vlhmm.data.joined import JoinedIds
            >>> int(np.min(JoinedIds([np.array([3, 1]), np.array([4])])))
            1
        """
        return min(part.min() for part in self._parts if len(part))

    def max(self, axis: None = None, out: None = None) -> Any:
        """Find the largest id, part by part.

        Args:
            axis: None; `numpy.max` asks so.
            out: None.

        Returns:
            The id.

        Example:
            >>> import numpy as np
            >>> from vlhmm.data.joined import JoinedIds
            >>> int(np.max(JoinedIds([np.array([3, 1]), np.array([4])])))
            4
        """
        return max(part.max() for part in self._parts if len(part))

    def astype(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Copy all ids into one array of another type.

        Args:
            dtype: The type.

        Returns:
            The array.

        Example:
            >>> import numpy as np
            >>> from vlhmm.data.joined import JoinedIds
            >>> JoinedIds([np.array([3, 1]), np.array([4])]).astype(np.float32)
            array([3., 1., 4.], dtype=float32)
        """
        return np.asarray(self[:].astype(dtype))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype)
