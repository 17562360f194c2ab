"""Every query of `vlhmm.HMM` answers as recorded."""

from __future__ import annotations

from functools import cache

import pytest
from torch import Tensor

from . import queries, records


@cache
def recorded() -> tuple[dict[str, Tensor], bool]:
    return records.read_tensors(queries.NAME)


def under(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in recorded()[0].items() if name.startswith(prefix)}


@pytest.mark.parametrize(("kind", "dtype"), queries.CASES)
def test_every_answer_is_the_recorded_one(kind: str, dtype: str) -> None:
    found = queries.answers_of(kind, under(f"{kind}/numbers/"), dtype)
    expected = under(f"{kind}/{dtype}/")
    assert expected
    assert records.tensor_differences(found, expected, recorded()[1], queries.DTYPES[dtype]) == []
