"""What a paper claims, as comparisons of numbers of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from experiments.quantities import QUANTITIES, written
from vlhmm.settings import nearest

Outcome = Literal["supported", "contradicted", "not run"]
_WORST_FIRST: tuple[Outcome, ...] = ("contradicted", "not run", "supported")


@dataclass(frozen=True)
class Cell:
    """One number of a table: `row.quantity`."""

    row: str
    quantity: str

    @classmethod
    def parse(cls, text: object, rows: Sequence[str]) -> Cell:
        row, _, quantity = str(text).rpartition(".")
        if quantity not in QUANTITIES:
            raise ValueError(f"{text!r} ends in no known quantity; {nearest(quantity, QUANTITIES)}")
        if row not in rows:
            raise ValueError(f"{text!r} names no row of this table; {nearest(row, rows)}")
        return cls(row, quantity)


@dataclass(frozen=True)
class Rising:
    """Each number is below the next, by the part `margin` of it at least."""

    cells: tuple[Cell, ...]
    margin: float

    def holds(self, values: Sequence[float]) -> bool:
        return all(low < high * (1 - self.margin) for low, high in pairwise(values))

    def shown(self, values: Sequence[str]) -> str:
        return " < ".join(values)


@dataclass(frozen=True)
class Alike:
    """The largest number is above the smallest by the part `within` at most."""

    cells: tuple[Cell, ...]
    within: float

    def holds(self, values: Sequence[float]) -> bool:
        return max(values) <= min(values) * (1 + self.within)

    def shown(self, values: Sequence[str]) -> str:
        return f"{', '.join(values)} within {self.within:.1%}"


@dataclass(frozen=True)
class Shrinking:
    """The steps from each number down to the next get smaller, but all go down."""

    cells: tuple[Cell, ...]

    def holds(self, values: Sequence[float]) -> bool:
        gains = [before - after for before, after in pairwise(values)]
        return all(gain > 0 for gain in gains) and all(first > second for first, second in pairwise(gains))

    def shown(self, values: Sequence[str]) -> str:
        return " > ".join(values) + ", by less and less"


@dataclass(frozen=True)
class Ratio:
    """The first number divided by the second lies between `low` and `high`."""

    cells: tuple[Cell, ...]
    low: float
    high: float

    def holds(self, values: Sequence[float]) -> bool:
        return self.low <= values[0] / values[1] <= self.high

    def shown(self, values: Sequence[str]) -> str:
        return f"{values[0]} / {values[1]} between {self.low:g} and {self.high:g}"


Check = Rising | Alike | Shrinking | Ratio


@dataclass(frozen=True)
class Claim:
    text: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Verdict:
    text: str
    outcome: Outcome
    numbers: str


def parse_claim(values: Mapping[str, Any], rows: Sequence[str]) -> Claim:
    """From `text` and any of `less` (with `margin`), `equal` (with `within`), `shrinking`, `ratio` (with `between`)."""
    known = ("text", "less", "margin", "equal", "within", "shrinking", "ratio", "between")
    for name in values:
        if name not in known:
            raise ValueError(f"a claim has an unknown key {name!r}; {nearest(name, known)}")
    text = values.get("text")
    if not isinstance(text, str):
        raise ValueError(f"a claim has text {text!r}; write it in words")

    def cells(name: str, exactly: int | None = None) -> tuple[Cell, ...]:
        listed = values[name]
        if not isinstance(listed, list) or len(listed) < 2 or (exactly and len(listed) != exactly):
            raise ValueError(f"claim {text!r}: {name} is {listed!r}, but must list {exactly or 'at least 2'} numbers")
        return tuple(Cell.parse(cell, rows) for cell in listed)

    checks: list[Check] = []
    if "less" in values:
        checks.append(Rising(cells("less"), float(values.get("margin", 0.0))))
    if "equal" in values:
        checks.append(Alike(cells("equal"), float(_needed(values, "within", text))))
    if "shrinking" in values:
        checks.append(Shrinking(cells("shrinking")))
    if "ratio" in values:
        low, high = _needed(values, "between", text)
        checks.append(Ratio(cells("ratio", 2), float(low), float(high)))
    if not checks:
        raise ValueError(f"claim {text!r} compares nothing; give less, equal, shrinking or ratio")
    return Claim(text, tuple(checks))


def _needed(values: Mapping[str, Any], name: str, text: str) -> Any:
    if name not in values:
        raise ValueError(f"claim {text!r} needs {name}")
    return values[name]


def judge(claim: Claim, value_of: Callable[[Cell], float | None]) -> Verdict:
    """Contradicted if a comparison fails, not run while a number is missing, else supported."""
    outcomes: set[Outcome] = set()
    numbers = []
    for check in claim.checks:
        values = [value_of(cell) for cell in check.cells]
        missing = [cell.row for cell, value in zip(check.cells, values, strict=True) if value is None]
        if missing:
            outcomes.add("not run")
            numbers.append(f"needs {' and '.join(dict.fromkeys(missing))}")
            continue
        present = [value for value in values if value is not None]
        outcomes.add("supported" if check.holds(present) else "contradicted")
        shown = [
            f"{cell.row} {written(cell.quantity, value)}" for cell, value in zip(check.cells, present, strict=True)
        ]
        numbers.append(check.shown(shown))
    outcome: Outcome = next(each for each in _WORST_FIRST if each in outcomes)
    return Verdict(claim.text, outcome, "; ".join(numbers))
