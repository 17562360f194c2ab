"""The settings of a row: a recipe for one of our HMMs, or those of a baseline. The names are those of table files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from vlhmm.baselines.settings import (
    AWDLSTMSettings,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
)
from vlhmm.recipe import Recipe, preset
from vlhmm.settings import nearest, parse_setting, settings_from


@dataclass(frozen=True)
class KneserNeySettings:
    order: int = 5
    """Contexts are the order - 1 words before."""
    fallback: bool = False
    """Fixed discounts where the text is too small to estimate them."""


RowSettings = Recipe | KneserNeySettings | BaselineSettings

HMM = "hmm"
BASELINES: dict[str, type[Any]] = {
    "kneser-ney": KneserNeySettings,
    "feedforward": FeedForwardSettings,
    "lstm": LSTMSettings,
    "awd-lstm": AWDLSTMSettings,
    "buys-hmm": BuysHMMSettings,
}


def recipe_settings(preset_name: str) -> Recipe:
    return preset(preset_name)


def baseline_settings(name: str) -> RowSettings:
    if name not in BASELINES:
        raise ValueError(f"no baseline {name!r}; {nearest(name, BASELINES)}")
    made: RowSettings = BASELINES[name]()
    return made


def kind_of(settings: RowSettings) -> str:
    """hmm, or the baseline's name."""
    if isinstance(settings, Recipe):
        return HMM
    return next(name for name, kind in BASELINES.items() if type(settings) is kind)


def knows(settings: RowSettings, name: str) -> bool:
    """Whether the row has a setting of this name."""
    if isinstance(settings, Recipe):
        return any(name in section for section in settings.to_dict().values())
    return any(item.name == name for item in fields(settings))


def changed(settings: RowSettings, changes: Mapping[str, str]) -> RowSettings:
    """With settings as a person types them."""
    if "seed" in changes:
        raise ValueError("the seed is no setting of a row: give it with --seed")
    if isinstance(settings, Recipe):
        return settings.with_changes(changes)
    kind = type(settings)
    for name in changes:
        if not knows(settings, name):
            raise ValueError(f"unknown setting {name!r}; {nearest(name, [item.name for item in fields(kind)])}")
    typed = {name: parse_setting(kind, name, text) for name, text in changes.items()}
    made: RowSettings = settings_from(kind, {**asdict(settings), **typed})
    return made


def with_seed(settings: RowSettings, seed: int) -> RowSettings:
    """A recipe says its seed itself; baselines are told."""
    if isinstance(settings, Recipe):
        return replace(settings, train=replace(settings.train, seed=seed))
    return settings


def as_values(settings: RowSettings) -> dict[str, Any]:
    """All settings in sections, without the seed."""
    if not isinstance(settings, Recipe):
        return {"baseline": asdict(settings)}
    values = settings.to_dict()
    del values["train"]["seed"]
    return values


def default_values(kind: str) -> dict[str, Any]:
    """What `as_values` gives for settings of which nothing was changed."""
    return as_values(Recipe() if kind == HMM else baseline_settings(kind))
