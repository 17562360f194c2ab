"""A table as a TOML file: its rows, the paper's numbers for them, and what the paper claims."""

from __future__ import annotations

import itertools
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.claims import Claim, parse_claim
from experiments.row_settings import (
    SECTIONS,
    RowSettings,
    baseline_settings,
    changed,
    knows,
    recipe_of,
    recipe_settings,
    with_sections,
)
from experiments.toml_values import (
    as_typed,
    check_keys,
    check_quantities,
    count_of,
    flag_of,
    is_number,
    list_of_tables,
    needed,
    numbers_of,
    seconds_of,
    text_of,
    typed,
)
from vlhmm.settings import nearest
from vlhmm.training.presets import Recipe

_SHARED_KEYS = ("preset", "changes", "test", "seconds", "tokens", "windows", "timings", "seeds", "rates", *SECTIONS)
"""What a row may leave to the file. Of sections a row takes the file's values for those it has itself."""
_FILE_KEYS = (
    *("title", "source", "note", "corpus", "columns", *_SHARED_KEYS, "rate_tokens", "rows", "grid", "claims", "figure"),
)
_ROW_KEYS = (*("name", "baseline", "paper", "train_fraction", "note", "x", "series", "rate_of", *_SHARED_KEYS),)
_GRID_KEYS = ("baseline", "settings", "draw", "seed", "sound", *_SHARED_KEYS)
_FIGURE_KEYS = ("x", "y", "log2", "log10", "measured")


@dataclass(frozen=True)
class Row:
    name: str
    settings: RowSettings
    paper: dict[str, float]
    """The paper's numbers, by quantity."""
    test: bool
    """Whether the test text is scored: once, with the weights that were best on validation."""
    train_fraction: float
    """The part of the training text that is used, from its beginning."""
    seconds: float
    """About how long it takes on one H200; rows are run cheapest first."""
    note: str
    x: float | str | None
    """Where it stands in the table's figure: at a number, or under a name."""
    series: str
    tokens: int = 0
    """Of the training text, the first ones; 0: all."""
    windows: int = 0
    """Perplexity is that of independent windows of so many tokens; 0: of one exact stream."""
    timings: bool = True
    """Whether its steps are timed, which takes longer than a short training."""
    seeds: tuple[int, ...] = (0,)
    rates: tuple[float, ...] = ()
    """Learning rates of which the best on validation, after a short training, is taken; empty: that of the settings."""
    rate_of: str = ""
    """The row whose chosen rate this one takes."""
    passing: bool = False
    """Its training run is not kept once it has a result: nothing more will be asked of it."""
    rate_is_open: bool = False
    """The rate is not chosen yet: the trainings that decide it have no results."""


@dataclass(frozen=True)
class FigureSpec:
    x: str
    """What the axis says."""
    y: str
    base: int | None
    """Of a logarithmic axis."""
    measured: str | None
    """Rows stand by this quantity as it was measured, not by their `x`."""


@dataclass(frozen=True)
class TableFile:
    path: Path
    title: str
    source: str
    """The paper, or what else the table belongs to."""
    note: str
    corpus: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    figure: FigureSpec | None
    best_first: bool
    """Shown in order of validation perplexity: the rows are a search."""
    rate_tokens: int
    """Those of the short trainings that choose a learning rate."""

    @property
    def name(self) -> str:
        return self.path.stem

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"{self.path} has no row {name!r}; {nearest(name, [row.name for row in self.rows])}")

    def with_changes(self, corpus: str | None, changes: Mapping[str, str], tokens: int | None = None) -> TableFile:
        """On another text, and with settings as typed in every row that has them; the paper's numbers no longer apply.

        `tokens`: rows use no more than the first so many of the training text. Another text is used whole else. On it, and
        where the learning rate is given, no rates are tried.
        """
        if corpus is None and not changes and tokens is None:
            return self
        for name in changes:
            if not any(knows(row.settings, name) for row in self.rows):
                raise ValueError(f"no row of {self.path} has a setting {name!r}")
        rate_is_given = corpus is not None or "learning_rate" in changes

        def used(row: Row) -> int:
            own = row.tokens if corpus is None else 0
            return own if tokens is None else min(own or tokens, tokens)

        rows = tuple(
            replace(
                row,
                settings=changed(row.settings, {k: v for k, v in changes.items() if knows(row.settings, k)}),
                paper={},
                tokens=used(row),
                rates=() if rate_is_given else row.rates,
                rate_of="" if rate_is_given else row.rate_of,
            )
            for row in self.rows
        )
        return replace(self, corpus=corpus or self.corpus, rows=rows)


def read_table(path: Path) -> TableFile:
    """Reads and checks the whole file, every row's settings included."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    try:
        return _table(path, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _table(path: Path, values: dict[str, Any]) -> TableFile:
    check_keys(values, _FILE_KEYS, "the file")
    columns = tuple(needed(values, "columns", list, "the file"))
    check_quantities(columns, "columns")
    rows = [_row(row, values) for row in list_of_tables(values, "rows")]
    if "grid" in values:
        rows += _grid_rows(values["grid"], values)
    if not rows:
        raise ValueError("0 rows, at least 1 is needed")
    names = [row.name for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two rows are called {twice!r}; each needs a name of its own")
    for row in rows:
        if row.rate_of and not any(other.name == row.rate_of and other.rates for other in rows):
            raise ValueError(f"row {row.name!r}: rate_of is {row.rate_of!r}, which is no row with rates")
        if row.rates and not values.get("rate_tokens"):
            raise ValueError(f"row {row.name!r} has rates, but the file no rate_tokens: say how long they are tried")
    figure = _figure(values["figure"], columns) if "figure" in values else None
    return TableFile(
        path=path,
        title=needed(values, "title", str, "the file"),
        source=text_of(values, "source"),
        note=text_of(values, "note"),
        corpus=needed(values, "corpus", str, "the file"),
        columns=columns,
        rows=tuple(rows),
        claims=tuple(parse_claim(claim, names) for claim in list_of_tables(values, "claims")),
        figure=figure,
        best_first="grid" in values,
        rate_tokens=count_of(values, {}, "rate_tokens", "the file"),
    )


def _row(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    name = needed(values, "name", str, "a row")
    where = f"row {name!r}"
    check_keys(values, _ROW_KEYS, where)
    paper = values.get("paper", {})
    if not isinstance(paper, dict) or not all(is_number(number) for number in paper.values()):
        raise ValueError(f"{where}: paper is {paper!r}, but must give numbers by quantity")
    check_quantities(paper, f"{where}, paper")
    fraction = values.get("train_fraction", 1.0)
    if not is_number(fraction) or not 0 < fraction <= 1:
        raise ValueError(f"{where}: train_fraction is {fraction!r}, but must be above 0 and at most 1")
    x = values.get("x")
    if x is not None and not (is_number(x) or isinstance(x, str)):
        raise ValueError(f"{where}: x is {x!r}, but must be a number or a name")
    tokens = count_of(values, defaults, "tokens", where)
    if tokens and fraction != 1:
        raise ValueError(f"{where} has tokens and train_fraction; it can be one of them")
    rates = tuple(map(float, numbers_of(values, defaults, "rates", where, []))) if "rate_of" not in values else ()
    settings = _settings(values, defaults, where)
    if (rates or "rate_of" in values) and recipe_of(settings) is None:
        raise ValueError(f"{where} tries learning rates, but is no HMM: leave rates and rate_of out")
    seeds = numbers_of(values, defaults, "seeds", where, [0])
    if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ValueError(f"{where}: seeds are {list(seeds)}, but must be whole numbers of at least 0")
    return Row(
        name=name,
        settings=settings,
        paper={quantity: float(number) for quantity, number in paper.items()},
        test=flag_of(values, defaults, "test", False, where),
        train_fraction=float(fraction),
        seconds=seconds_of(values, defaults, where),
        note=text_of(values, "note"),
        x=x if x is None or isinstance(x, str) else float(x),
        series=text_of(values, "series"),
        tokens=tokens,
        windows=count_of(values, defaults, "windows", where),
        timings=flag_of(values, defaults, "timings", True, where),
        seeds=seeds,
        rates=rates,
        rate_of=text_of(values, "rate_of"),
    )


def _grid_rows(grid: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Row]:
    """All combinations of the listed values, or `draw` of them, always the same ones for a seed.

    `sound`: combinations that the settings refuse are left out instead of being an error.
    """
    check_keys(grid, _GRID_KEYS, "grid")
    listed = needed(grid, "settings", dict, "grid")
    for name, choices in listed.items():
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"grid: {name} is {choices!r}, but must list at least 1 value")
    combinations = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
    draw = grid.get("draw", len(combinations))
    if type(draw) is not int or not 1 <= draw <= len(combinations):
        raise ValueError(f"grid: draw is {draw!r}, but must be from 1 to the {len(combinations)} combinations")
    if draw < len(combinations):
        combinations = random.Random(grid.get("seed", 0)).sample(combinations, draw)
    rows = []
    for combination in combinations:
        name = ", ".join(f"{key} {as_typed(value)}" for key, value in combination.items())
        row = {key: value for key, value in grid.items() if key not in ("settings", "draw", "seed", "sound")}
        changes = {**grid.get("changes", {}), **combination}
        try:
            rows.append(_row({**row, "name": name, "changes": changes}, defaults))
        except ValueError:
            if not grid.get("sound", False):
                raise
    return rows


def _settings(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> RowSettings:
    changes = values.get("changes", {})
    common = defaults.get("changes", {})
    if not isinstance(changes, dict) or not isinstance(common, dict):
        raise ValueError(f"{where}: changes must give settings by name")
    if "baseline" in values and "preset" in values:
        raise ValueError(f"{where} has a preset and a baseline; it can be one of them")
    try:
        if "baseline" in values:
            return changed(baseline_settings(str(values["baseline"])), typed(changes))
        name = values.get("preset", defaults.get("preset"))
        if name is None:
            raise ValueError("neither preset nor baseline; name one, here or for the whole file")
        recipe = changed(recipe_settings(str(name)), typed({**common, **changes}))
        assert isinstance(recipe, Recipe)
        return with_sections(recipe, _sections(values, defaults))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _sections(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Those the row has, with the file's values where it gives none; a teacher that distils brings `lvd` along."""
    names = [name for name in SECTIONS if name in values]
    if "teacher" in names and "lvd" not in names and "lvd" in defaults:
        names.append("lvd")
    for name in names:
        if not isinstance(values.get(name, {}), dict):
            raise ValueError(f"{name} is {values[name]!r}, but must give settings by name")
    return {name: {**defaults.get(name, {}), **values.get(name, {})} for name in names}


def _figure(values: Mapping[str, Any], columns: tuple[str, ...]) -> FigureSpec:
    check_keys(values, _FIGURE_KEYS, "figure")
    y = needed(values, "y", str, "figure")
    if y not in columns:
        raise ValueError(f"figure: y is {y!r}, which is no column; {nearest(y, columns)}")
    base = 2 if values.get("log2") else 10 if values.get("log10") else None
    measured = values.get("measured")
    if measured is not None:
        check_quantities([measured], "figure, measured")
        if measured not in columns:
            raise ValueError(f"figure: measured is {measured!r}, which is no column; {nearest(measured, columns)}")
    return FigureSpec(needed(values, "x", str, "figure"), y, base, measured)
