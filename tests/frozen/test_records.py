"""A comparison with a record notices a difference."""

from __future__ import annotations

import pytest
import torch

from . import public_names, records

VALUES = torch.tensor([3.0, -0.5, 0.25, float("-inf")], dtype=torch.float64)


def one_ulp_more(values: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(values, torch.full_like(values, torch.inf))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_numbers_are_compared_by_bits_or_within_the_tolerance(dtype: torch.dtype) -> None:
    values = VALUES.to(dtype)
    assert records.tensor_difference(values, values, True, dtype) is None
    assert records.tensor_difference(one_ulp_more(values), values, True, dtype)
    within, beyond = (values * (1 + part * records.TOLERANCE[dtype]) for part in (0.5, 2.0))
    assert records.tensor_difference(within, values, False, dtype) is None
    assert records.tensor_difference(beyond, values, False, dtype)
    assert records.tensor_difference(values.nan_to_num(neginf=-1e9), values, False, dtype)


def test_a_lost_answer_another_type_or_shape_is_a_difference() -> None:
    recorded = {"a": VALUES}
    assert records.tensor_differences({}, recorded, False, torch.float64) == ["a is missing"]
    for changed in (VALUES.float(), VALUES[None], VALUES[:3]):
        assert records.tensor_differences({"a": changed}, recorded, False, torch.float64)
    assert records.tensor_difference(torch.tensor([1, 2]), torch.tensor([1, 3]), False, torch.float32)
    assert records.tensor_difference(torch.full((2,), torch.nan), torch.ones(2), False, torch.float32)


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 2, "x": 0.5, "words": ["a"]},
        {"n": 1, "x": 0.50002, "words": ["a"]},
        {"n": 1, "x": float("nan"), "words": ["a"]},
        {"n": 1, "x": 0.5, "words": ["b"]},
        {"n": 1, "x": 0.5, "words": ["a", "a"]},
        {"n": 1, "x": 0.5},
        {"n": 1, "x": 0.5, "words": ["a"], "new": None},
        {"n": 1.0, "x": 0.5, "words": ["a"]},
        {"n": 1, "x": "0.5", "words": ["a"]},
    ],
)
def test_json_is_compared_key_by_key(changed: dict) -> None:
    recorded = {"n": 1, "x": 0.5, "words": ["a"]}
    assert list(records.json_differences(recorded, recorded, False)) == []
    assert list(records.json_differences(changed, recorded, False))


def test_bits_of_json_numbers_count_on_the_same_machine() -> None:
    assert list(records.json_differences([0.1 + 0.2], [0.3], True))
    assert not list(records.json_differences([0.1 + 0.2], [0.3], False))


def test_promises_that_are_gone_or_new_are_told_apart(tmp_path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("f\n    1. a\n    b (keyword only) = 1\ng\n", encoding="utf-8")
    gone, new = public_names.changes(path, ["f", "    1. a", "    b (keyword only) = 2"])
    assert gone == ["f: b (keyword only) = 1", "g"]
    assert new == ["f: b (keyword only) = 2"]
