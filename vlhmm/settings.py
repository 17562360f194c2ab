"""Settings that people write: frozen dataclasses whose names, types and choices are checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")


def settings_from(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """`kind(**values)`; an unknown name is refused with the nearest known one."""
    known = get_type_hints(kind)
    for name in values:
        if name not in known:
            raise ValueError(f"unknown setting {name!r}; {nearest(name, known)}")
    return kind(**{name: _checked(name, value, known[name]) for name, value in values.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{name} is {value!r}; {nearest(str(value), get_args(hint))}")
    elif hint is float and type(value) is int:
        # JSON and the command line write 1 for 1.0.
        return float(value)
    elif type(value) is not hint:
        raise ValueError(f"{name} is {value!r}, but must be of type {hint.__name__}")
    return value


def parse_setting(kind: type[Any], name: str, text: str) -> Any:
    """The value of `name` as a person types it on the command line."""
    hint = get_type_hints(kind)[name]
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} is {text!r}, but must be true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ValueError(f"{name} is {text!r}, but must be of type {hint.__name__}") from None
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names for an error message, the nearest one first."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}known are: {', '.join(repr(name) if ',' in name else name for name in known)}"
