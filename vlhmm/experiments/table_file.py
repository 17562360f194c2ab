"""A table as a TOML file: its rows, the paper's numbers for them, and what the paper claims."""

from __future__ import annotations

import itertools
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlhmm.experiments.claims import Claim, parse_claim
from vlhmm.experiments.quantities import QUANTITIES
from vlhmm.experiments.row_settings import RowSettings, baseline_settings, changed, knows, recipe_settings
from vlhmm.settings import nearest

_FILE_KEYS = (
    *("title", "source", "note", "corpus", "columns", "preset", "changes", "test", "seconds"),
    *("rows", "grid", "claims", "figure"),
)
_ROW_KEYS = (
    *("name", "preset", "baseline", "changes", "paper", "test", "train_fraction", "seconds", "note", "x", "series"),
)
_GRID_KEYS = ("preset", "baseline", "changes", "settings", "draw", "seed", "seconds")
_FIGURE_KEYS = ("x", "y", "log2")


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
    x: float | None
    """Where it stands in the table's figure."""
    series: str


@dataclass(frozen=True)
class FigureSpec:
    x: str
    """What the axis says."""
    y: str
    log2: bool


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

    @property
    def name(self) -> str:
        return self.path.stem

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"{self.path} has no row {name!r}; {nearest(name, [row.name for row in self.rows])}")

    def with_changes(self, corpus: str | None, changes: Mapping[str, str]) -> TableFile:
        """On another text, and with settings as typed in every row that has them; the paper's numbers no longer apply."""
        if corpus is None and not changes:
            return self
        for name in changes:
            if not any(knows(row.settings, name) for row in self.rows):
                raise ValueError(f"no row of {self.path} has a setting {name!r}")
        rows = tuple(
            replace(
                row,
                settings=changed(row.settings, {k: v for k, v in changes.items() if knows(row.settings, k)}),
                paper={},
            )
            for row in self.rows
        )
        return replace(self, corpus=corpus or self.corpus, rows=rows)


def read_table(path: Path) -> TableFile:
    """Reads and checks the whole file, every row's settings included."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    try:
        return _table(path, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _table(path: Path, values: dict[str, Any]) -> TableFile:
    _check_keys(values, _FILE_KEYS, "the file")
    columns = tuple(_needed(values, "columns", list, "the file"))
    _check_quantities(columns, "columns")
    rows = [_row(row, values) for row in _list_of_tables(values, "rows")]
    if "grid" in values:
        rows += _grid_rows(values["grid"], values)
    if not rows:
        raise ValueError("0 rows, at least 1 is needed")
    names = [row.name for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two rows are called {twice!r}; each needs a name of its own")
    figure = _figure(values["figure"], columns) if "figure" in values else None
    return TableFile(
        path=path,
        title=_needed(values, "title", str, "the file"),
        source=_text(values, "source"),
        note=_text(values, "note"),
        corpus=_needed(values, "corpus", str, "the file"),
        columns=columns,
        rows=tuple(rows),
        claims=tuple(parse_claim(claim, names) for claim in _list_of_tables(values, "claims")),
        figure=figure,
        best_first="grid" in values,
    )


def _row(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    name = _needed(values, "name", str, "a row")
    where = f"row {name!r}"
    _check_keys(values, _ROW_KEYS, where)
    paper = values.get("paper", {})
    if not isinstance(paper, dict) or not all(_is_number(number) for number in paper.values()):
        raise ValueError(f"{where}: paper is {paper!r}, but must give numbers by quantity")
    _check_quantities(paper, f"{where}, paper")
    fraction = values.get("train_fraction", 1.0)
    if not _is_number(fraction) or not 0 < fraction <= 1:
        raise ValueError(f"{where}: train_fraction is {fraction!r}, but must be above 0 and at most 1")
    x = values.get("x")
    if x is not None and not _is_number(x):
        raise ValueError(f"{where}: x is {x!r}, but must be a number")
    return Row(
        name=name,
        settings=_settings(values, defaults, where),
        paper={quantity: float(number) for quantity, number in paper.items()},
        test=_flag(values, defaults, where),
        train_fraction=float(fraction),
        seconds=_seconds(values, defaults, where),
        note=_text(values, "note"),
        x=None if x is None else float(x),
        series=_text(values, "series"),
    )


def _grid_rows(grid: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Row]:
    """All combinations of the listed values, or `draw` of them, always the same ones for a seed."""
    _check_keys(grid, _GRID_KEYS, "grid")
    listed = _needed(grid, "settings", dict, "grid")
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
        name = ", ".join(f"{key} {_as_typed(value)}" for key, value in combination.items())
        row = {key: grid[key] for key in ("preset", "baseline", "seconds") if key in grid}
        rows.append(_row({**row, "name": name, "changes": {**grid.get("changes", {}), **combination}}, defaults))
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
            return changed(baseline_settings(str(values["baseline"])), _typed(changes))
        name = values.get("preset", defaults.get("preset"))
        if name is None:
            raise ValueError("neither preset nor baseline; name one, here or for the whole file")
        return changed(recipe_settings(str(name)), _typed({**common, **changes}))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _figure(values: Mapping[str, Any], columns: tuple[str, ...]) -> FigureSpec:
    _check_keys(values, _FIGURE_KEYS, "figure")
    y = _needed(values, "y", str, "figure")
    if y not in columns:
        raise ValueError(f"figure: y is {y!r}, which is no column; {nearest(y, columns)}")
    return FigureSpec(_needed(values, "x", str, "figure"), y, bool(values.get("log2", False)))


def _typed(changes: Mapping[str, Any]) -> dict[str, str]:
    return {name: _as_typed(value) for name, value in changes.items()}


def _as_typed(value: Any) -> str:
    """A value of TOML as a person would type it after --set."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list_of_tables(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = values.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ValueError(f"{name} must be written as [[{name}]], once for each")
    return listed


def _check_keys(values: object, known: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}, but must have keys: {', '.join(known)}")
    for name in values:
        if name not in known:
            raise ValueError(f"{where} has an unknown key {name!r}; {nearest(name, known)}")


def _check_quantities(names: Any, where: str) -> None:
    for name in names:
        if name not in QUANTITIES:
            raise ValueError(f"{where}: unknown quantity {name!r}; {nearest(str(name), QUANTITIES)}")


def _needed(values: Mapping[str, Any], name: str, kind: type[Any], where: str) -> Any:
    if not isinstance(values.get(name), kind):
        raise ValueError(f"{where} has {name} = {values.get(name)!r}, but needs one of type {kind.__name__}")
    return values[name]


def _text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r}, but must be text")
    return text


def _flag(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> bool:
    test = values.get("test", defaults.get("test", False))
    if not isinstance(test, bool):
        raise ValueError(f"{where}: test is {test!r}, but must be true or false")
    return test


def _seconds(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> float:
    seconds = values.get("seconds", defaults.get("seconds", 0))
    if not _is_number(seconds) or seconds < 0:
        raise ValueError(f"{where}: seconds is {seconds!r}, but must be a number of at least 0")
    return float(seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
