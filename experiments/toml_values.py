"""Values of a table file, each of the type it must have, or an error that says where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.quantities import QUANTITIES
from vlhmm.settings import nearest


def typed(changes: Mapping[str, Any]) -> dict[str, str]:
    return {name: as_typed(value) for name, value in changes.items()}


def as_typed(value: Any) -> str:
    """A value of TOML as a person would type it after --set."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_of_tables(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = values.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ValueError(f"{name} must be written as [[{name}]], once for each")
    return listed


def check_keys(values: object, known: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}, but must have keys: {', '.join(known)}")
    for name in values:
        if name not in known:
            raise ValueError(f"{where} has an unknown key {name!r}; {nearest(name, known)}")


def check_quantities(names: Any, where: str) -> None:
    for name in names:
        if name not in QUANTITIES:
            raise ValueError(f"{where}: unknown quantity {name!r}; {nearest(str(name), QUANTITIES)}")


def needed(values: Mapping[str, Any], name: str, kind: type[Any], where: str) -> Any:
    if not isinstance(values.get(name), kind):
        raise ValueError(f"{where} has {name} = {values.get(name)!r}, but needs one of type {kind.__name__}")
    return values[name]


def text_of(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r}, but must be text")
    return text


def flag_of(values: Mapping[str, Any], defaults: Mapping[str, Any], name: str, default: bool, where: str) -> bool:
    flag = values.get(name, defaults.get(name, default))
    if not isinstance(flag, bool):
        raise ValueError(f"{where}: {name} is {flag!r}, but must be true or false")
    return flag


def count_of(values: Mapping[str, Any], defaults: Mapping[str, Any], name: str, where: str) -> int:
    count = values.get(name, defaults.get(name, 0))
    if type(count) is not int or count < 0:
        raise ValueError(f"{where}: {name} is {count!r}, but must be a whole number of at least 0")
    return count


def numbers_of(
    values: Mapping[str, Any], defaults: Mapping[str, Any], name: str, where: str, default: list[Any]
) -> tuple[Any, ...]:
    listed = values.get(name, defaults.get(name, default))
    if not isinstance(listed, list) or not all(is_number(number) for number in listed):
        raise ValueError(f"{where}: {name} is {listed!r}, but must list numbers")
    return tuple(listed)


def seconds_of(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> float:
    seconds = values.get("seconds", defaults.get("seconds", 0))
    if not is_number(seconds) or seconds < 0:
        raise ValueError(f"{where}: seconds is {seconds!r}, but must be a number of at least 0")
    return float(seconds)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
