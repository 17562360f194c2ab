"""Learning rates that are chosen: rows try theirs in short trainings, and take the one that was best on validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.results import find_result, identity_of
from experiments.row_settings import recipe_of, with_recipe
from experiments.table_file import Row, TableFile

WIDENINGS = 3
"""Where the best of the rates is the smallest or the largest, the next one is tried too, so many times."""


def trials(table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path]) -> list[Row]:
    """The short trainings that decide the rate of a row, or of the one whose rate it takes; those included that only the
    results of the others ask for.

    `text`: the checksums of the table's corpus; `folders`: where results are.
    """
    deciding = _deciding(table, row)
    if not deciding.rates:
        return []
    return [_trial(table, deciding, rate) for rate in _tried(table, deciding, text, folders)]


def with_chosen_rate(table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path]) -> Row:
    """The row with the rate that its trials, or those of the row it names, have chosen; open where a trial has no result."""
    if not (row.rates or row.rate_of):
        return row
    tried = _tried(table, _deciding(table, row), text, folders)
    row = replace(row, rates=tuple(sorted(tried))) if row.rates else row
    best = _best(tried)
    return replace(row, rate_is_open=True) if best is None else with_rate(row, best)


def _deciding(table: TableFile, row: Row) -> Row:
    return table.row(row.rate_of) if row.rate_of else row


def _trial(table: TableFile, row: Row, rate: float) -> Row:
    tokens = min(table.rate_tokens, row.tokens or table.rate_tokens)
    return replace(
        with_rate(row, rate),
        name=f"{row.name}, rate {rate:g}",
        tokens=tokens,
        test=False,
        timings=False,
        seeds=row.seeds[:1],
        rates=(),
        passing=True,
        paper={},
    )


def with_rate(row: Row, rate: float) -> Row:
    recipe = recipe_of(row.settings)
    assert recipe is not None
    return replace(
        row, settings=with_recipe(row.settings, replace(recipe, train=replace(recipe.train, learning_rate=rate)))
    )


def rate_of(row: Row) -> float | None:
    recipe = recipe_of(row.settings)
    return None if recipe is None else recipe.train.learning_rate


def _tried(table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path]) -> dict[float, float | None]:
    """Every rate that is to be tried, as far as that is known yet, with its perplexity: None while there is no result, and
    infinite where training diverged."""

    def perplexity(rate: float) -> float | None:
        trial = _trial(table, row, rate)
        found = find_result(folders, identity_of(trial, text, trial.seeds[0]))
        return None if found is None else found[1].measured.get("valid", math.inf)

    tried = {rate: perplexity(rate) for rate in row.rates}
    for _ in range(WIDENINGS):
        beyond = _beyond(tried)
        if beyond is None:
            break
        tried[beyond] = perplexity(beyond)
    return tried


def _best(tried: Mapping[float, float | None]) -> float | None:
    """None while a trial has no result; of equals the smallest."""
    found = {rate: perplexity for rate, perplexity in tried.items() if perplexity is not None}
    return min(sorted(found), key=lambda rate: found[rate]) if len(found) == len(tried) else None


def _beyond(tried: Mapping[float, float | None]) -> float | None:
    """The next rate behind the best one, if that is the last on its side; as far from it as its neighbour is."""
    best, rates = _best(tried), sorted(tried)
    if best is None or len(rates) < 2 or rates[0] < best < rates[-1]:
        return None
    neighbour = rates[1] if best == rates[0] else rates[-2]
    # Of few digits: it is a name, and part of what a result is known by.
    return float(f"{best * best / neighbour:.2g}")
