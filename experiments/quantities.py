"""What a table can show of a row: names, headings and how a number is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    heading: str
    digits: int
    """Behind the point."""
    millions: bool = False


SPREAD = "test_spread"
QUANTITIES: dict[str, Quantity] = {
    "parameters": Quantity("parameters", 2, millions=True),
    "train": Quantity("train ppl", 1),
    "running_train": Quantity("train ppl, running", 1),
    "valid": Quantity("valid ppl", 1),
    "test": Quantity("test ppl", 1),
    "valid_bits": Quantity("valid bits per byte", 3),
    "test_bits": Quantity("test bits per byte", 3),
    "teacher_valid": Quantity("teacher valid ppl", 1),
    "samples_by_teacher": Quantity("samples by teacher, ppl", 1),
    "mixture_valid": Quantity("valid ppl after samples", 1),
    "total_seconds": Quantity("s in all", 0),
    SPREAD: Quantity("test ppl, max - min", 1),
    "seconds_per_epoch": Quantity("s an epoch", 1),
    "training_ms": Quantity("ms, training forward", 2),
    "regenerating_ms": Quantity("ms, tables made anew", 2),
    "cached_ms": Quantity("ms, tables cached", 2),
}
"""test_spread: between the worst and the best of several seeds. train: all states, after training; running_train: the mean over an epoch of training, with its dropout. The three times
are those of one batch: a forward pass as in training, evaluation that first makes the tables, evaluation from tables."""


def written(name: str, value: float, digits: int | None = None) -> str:
    """`digits`: behind the point, instead of the quantity's own."""
    quantity = QUANTITIES[name]
    digits = quantity.digits if digits is None else digits
    if quantity.millions and value < 1e5:
        return f"{value:,.0f}"
    if quantity.millions:
        return f"{value / 1e6:,.{digits}f}M"
    return f"{value:,.{digits}f}"
