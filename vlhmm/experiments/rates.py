"""Learning rates that are chosen: rows try theirs in short trainings, and take the one that was best on validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vlhmm.experiments.results import find_result, identity_of
from vlhmm.experiments.row_settings import recipe_of, with_recipe
from vlhmm.experiments.table_file import Row, TableFile

WIDENINGS = 3
"""Where the best of the rates is the smallest or the largest, the next one is tried too, so many times."""


def trials(table: TableFile, rows: Sequence[Row], text: Mapping[str, str], folders: Sequence[Path]) -> list[Row]:
    """The short trainings that decide the rates of these rows, and of the rows whose rate they take; those included that
    only the results of the others ask for.

    `text`: the checksums of the table's corpus; `folders`: where results are.
    """
    deciding = {(table.row(row.rate_of) if row.rate_of else row).name for row in rows}
    return [
        _trial(table, row, rate)
        for row in table.rows
        if row.name in deciding and row.rates
        for rate in _tried(table, row, text, folders)
    ]


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


def with_chosen_rates(table: TableFile, text: Mapping[str, str], folders: Sequence[Path]) -> TableFile:
    """Every row with the rate that its trials, or those of the row it names, have chosen; open where a trial has no result.

    `text`: the checksums of the table's corpus.
    """
    chosen = {row.name: _tried(table, row, text, folders) for row in table.rows if row.rates}

    def settled(row: Row) -> Row:
        if not (row.rates or row.rate_of):
            return row
        tried = chosen[row.rate_of or row.name]
        row = replace(row, rates=tuple(sorted(tried))) if row.rates else row
        best = _best(tried)
        return replace(row, rate_is_open=True) if best is None else with_rate(row, best)

    return replace(table, rows=tuple(settled(row) for row in table.rows))


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
