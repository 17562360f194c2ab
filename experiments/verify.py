"""A stored result against a new run of the same row: which figures differ by more than the tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.rates import with_chosen_rate
from experiments.results import Result, find_seeds
from experiments.table_file import Row, TableFile

TOLERANCE = 0.01
"""Of a perplexity. Devices and versions add in another order, and training amplifies the last digit."""
COMPARED = ("valid", "test", "train", "running_train", "parameters")
"""The first one always: without it training has diverged."""


@dataclass(frozen=True)
class Comparison:
    """One figure of one row and seed."""

    table: str
    row: str
    seed: int
    quantity: str
    stored: float | None
    """None: training diverged, here and below."""
    new: float | None
    tolerance: float
    stored_device: str
    new_device: str

    @property
    def difference(self) -> float | None:
        return None if self.stored is None or self.new is None else self.new - self.stored

    @property
    def within(self) -> bool:
        difference = self.difference
        # A NaN is within no tolerance.
        return self.stored == self.new if difference is None else abs(difference) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "difference": self.difference, "within": self.within}


@dataclass(frozen=True)
class Stored:
    """A row that has results, as it is trained anew to verify them."""

    table: TableFile
    row: Row
    text: Mapping[str, str]
    results: tuple[Result, ...]
    """Those to be verified, one for each seed of the row."""
    seeds: tuple[Result, ...]
    """All results of the row's settings; how far they are apart is a tolerance."""


def stored_results(
    table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path], seeds: Sequence[int] = ()
) -> Stored | None:
    """What can be verified of a row; None where it has no result.

    `text`: the checksums of the table's corpus; `folders`: where results are; `seeds`: these instead of the row's own.
    """
    settled = with_chosen_rate(table, row, text, folders)
    if settled.rate_is_open:
        return None
    every = tuple(find_seeds(folders, settled, text))
    wanted = tuple(result for result in every if result.seed in (seeds or settled.seeds))
    if not wanted:
        return None
    anew = replace(
        settled,
        seeds=tuple(result.seed for result in wanted),
        test=any("test" in result.measured for result in wanted),
        # The rate is chosen, and times are not compared: neither is worked for again.
        rates=(),
        rate_of="",
        timings=False,
    )
    return Stored(table, anew, text, wanted, every)


def compare(stored: Stored, new: Sequence[Result]) -> list[Comparison]:
    """Of each seed that was trained anew: every perplexity that is stored, and the number of parameters, which must be the same."""
    by_identity = {result.identity.hash: result for result in new}
    pairs = [(old, by_identity.get(old.identity.hash)) for old in stored.results]
    return [
        Comparison(
            stored.table.name,
            stored.row.name,
            old.seed,
            quantity,
            old.measured.get(quantity),
            found.measured.get(quantity),
            0.0 if quantity == "parameters" else _tolerance(old, quantity, stored.seeds),
            old.device,
            found.device,
        )
        for old, found in pairs
        if found is not None
        for quantity in ("valid", *(name for name in COMPARED[1:] if name in old.measured))
    ]


def _tolerance(stored: Result, quantity: str, seeds: Sequence[Result]) -> float:
    """TOLERANCE of the perplexity, or the spread of the seeds where that is larger."""
    values = [result.measured[quantity] for result in seeds if quantity in result.measured]
    return max(TOLERANCE * stored.measured.get(quantity, 0.0), max(values) - min(values) if values else 0.0)
