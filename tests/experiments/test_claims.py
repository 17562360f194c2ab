"""Claims are judged by their comparisons alone."""

from typing import Any

import pytest

from experiments.claims import Cell, judge, parse_claim

NUMBERS = {"a": 100.0, "b": 110.0, "c": 115.0, "d": 116.0}


def outcome(values: dict[str, Any], numbers: dict[str, float] = NUMBERS) -> str:
    claim = parse_claim({"text": "so it is", **values}, list(NUMBERS))
    return judge(claim, lambda cell: numbers.get(cell.row)).outcome


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"less": ["a.valid", "b.valid"]}, "supported"),
        ({"less": ["a.valid", "b.valid", "c.valid"]}, "supported"),
        ({"less": ["b.valid", "a.valid"]}, "contradicted"),
        ({"less": ["a.valid", "a.valid"]}, "contradicted"),
        ({"less": ["a.valid", "b.valid"], "margin": 0.05}, "supported"),
        ({"less": ["a.valid", "b.valid"], "margin": 0.1}, "contradicted"),
        ({"equal": ["c.valid", "d.valid"], "within": 0.01}, "supported"),
        ({"equal": ["a.valid", "b.valid", "c.valid"], "within": 0.1}, "contradicted"),
        ({"shrinking": ["d.valid", "a.valid"]}, "supported"),
        ({"shrinking": ["d.valid", "c.valid", "b.valid"]}, "contradicted"),
        ({"shrinking": ["d.valid", "a.valid", "b.valid"]}, "contradicted"),
        ({"ratio": ["b.valid", "a.valid"], "between": [1.05, 1.2]}, "supported"),
        ({"ratio": ["a.valid", "b.valid"], "between": [1.05, 1.2]}, "contradicted"),
    ],
)
def test_a_claim_holds_when_its_numbers_do(values: dict[str, Any], expected: str) -> None:
    assert outcome(values) == expected


def test_a_missing_number_leaves_a_claim_open_unless_another_contradicts_it() -> None:
    some = {"a": 100.0, "b": 110.0}
    assert outcome({"less": ["a.valid", "c.valid"]}, some) == "not run"
    both = {"less": ["b.valid", "a.valid"], "equal": ["a.valid", "c.valid"], "within": 0.5}
    assert outcome(both, some) == "contradicted"


def test_verdicts_show_rows_and_numbers() -> None:
    claim = parse_claim({"text": "so it is", "less": ["a.valid", "b.valid"]}, list(NUMBERS))
    assert judge(claim, lambda cell: NUMBERS[cell.row]).numbers == "a 100.0 < b 110.0"
    assert judge(claim, lambda cell: None).numbers == "needs a and b"


def test_a_row_may_have_points_in_its_name() -> None:
    assert Cell.parse("at 0.5.valid", ["at 0.5"]) == Cell("at 0.5", "valid")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"less": ["a.valid"]}, "at least 2"),
        ({"less": ["a.valid", "e.valid"]}, "names no row"),
        ({"less": ["a.valid", "b.vaild"]}, "did you mean 'valid'"),
        ({"equal": ["a.valid", "b.valid"]}, "needs within"),
        ({"ratio": ["a.valid", "b.valid", "c.valid"], "between": [1, 2]}, "must list 2"),
        ({"lesss": ["a.valid", "b.valid"]}, "did you mean 'less'"),
        ({}, "compares nothing"),
    ],
)
def test_bad_claims_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outcome(values)
