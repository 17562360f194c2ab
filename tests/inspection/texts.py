"""A text from ids, and what a generator ends with."""

from collections.abc import Generator
from typing import Any

import numpy as np

from vlhmm.data import Tokens


def as_text(ids: Any) -> Tokens:
    ids = np.asarray(ids, dtype=np.int64)
    return Tokens(ids, np.array([0, len(ids)], np.int64))


def result(steps: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
