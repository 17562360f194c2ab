"""Learning rates that are chosen: rows try theirs in short trainings, and take the one that was best on validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vlhmm.experiments.results import find_result, identity_of
from vlhmm.experiments.row_settings import recipe_of, with_recipe
from vlhmm.experiments.table_file import Row, TableFile


def trials(table: TableFile, rows: Sequence[Row]) -> list[Row]:
    """The short trainings that decide the rates of these rows, and of the rows whose rate they take."""
    deciding = {(table.row(row.rate_of) if row.rate_of else row).name for row in rows}
    return [trial for row in table.rows if row.name in deciding for trial in _trials_of(table, row)]


def _trials_of(table: TableFile, row: Row) -> list[Row]:
    return [_trial(table, row, rate) for rate in row.rates]


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
    chosen = {row.name: _best_rate(table, row, text, folders) for row in table.rows if row.rates}

    def settled(row: Row) -> Row:
        if not (row.rates or row.rate_of):
            return row
        rate = chosen[row.rate_of or row.name]
        return replace(row, rate_is_open=True) if rate is None else with_rate(row, rate)

    return replace(table, rows=tuple(settled(row) for row in table.rows))


def _best_rate(table: TableFile, row: Row, text: Mapping[str, str], folders: Sequence[Path]) -> float | None:
    """None while a trial has no result; one that diverged is worse than any other."""
    perplexity: dict[float, float] = {}
    for rate, trial in zip(row.rates, _trials_of(table, row), strict=True):
        found = find_result(folders, identity_of(trial, text, trial.seeds[0]))
        if found is None:
            return None
        perplexity[rate] = found[1].measured.get("valid", math.inf)
    return min(perplexity, key=lambda rate: (perplexity[rate], rate))
