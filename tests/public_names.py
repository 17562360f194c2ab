"""The public names of vlhmm: what `vlhmm.__all__` lists, the classes that these return or hold, and their members.

`python tests/public_names.py` rewrites tests/public_names.txt, which a test compares.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import vlhmm
from vlhmm.models import ModelSettings

FILE = Path(__file__).with_suffix(".txt")
Kind = Literal["class", "function", "method", "property", "field"]

NAMED_BY_KEYWORDS = [ModelSettings]
"""Classes whose fields are what `**settings` of public functions takes."""


@dataclass(frozen=True)
class PublicName:
    """One public name and the object that it names."""

    name: str
    kind: Kind
    value: Any
    owner: type | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def public_names() -> list[PublicName]:
    """Every public name, sorted: `vlhmm.X` is exported, `X` is a class that is reached by others, whatever its module."""
    exported = [getattr(vlhmm, name) for name in vlhmm.__all__ if not name.startswith("_")]
    named = {value: f"vlhmm.{value.__name__}" for value in exported}
    named |= {value: value.__name__ for value in NAMED_BY_KEYWORDS}
    waiting, names = list(named), list[PublicName]()
    while waiting:
        value = waiting.pop()
        if inspect.isclass(value):
            members = [PublicName(named[value], "class", value), *_members(value, named[value])]
        else:
            members = [PublicName(named[value], "function", value)]
        names += members
        for found in (cls for member in members for cls in _classes_of(member)):
            if found not in named:
                named[found] = found.__name__
                waiting.append(found)
    return sorted(names, key=lambda one: one.name)


def _members(cls: type, prefix: str) -> Iterator[PublicName]:
    """Fields of a dataclass, and what the class and its bases in vlhmm define; no underscore at the beginning, `__call__` apart."""
    seen = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in seen:
        yield PublicName(f"{prefix}.{name}", "field", None, cls)
    for base in (base for base in cls.__mro__ if base.__module__.startswith("vlhmm")):
        for name, value in vars(base).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            if isinstance(value, property | functools.cached_property):
                kind: Kind = "property"
            elif inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
                kind = "method"
            else:
                continue
            seen.add(name)
            yield PublicName(f"{prefix}.{name}", kind, getattr(value, "__func__", value), base)


def _classes_of(one: PublicName) -> Iterator[type]:
    """The classes of vlhmm that an object returns or, for a field, holds."""
    match one.kind:
        case "class":
            return
        case "field":
            assert one.owner is not None
            hint = typing.get_type_hints(one.owner).get(one.name.rsplit(".", 1)[1])
        case "property":
            getter = one.value.func if isinstance(one.value, functools.cached_property) else one.value.fget
            hint = typing.get_type_hints(inspect.unwrap(getter)).get("return")
        case _:
            hint = _return_hint(inspect.unwrap(one.value))
    yield from _inside(hint)


def _return_hint(function: Any) -> Any:
    # Other annotations may name what only type checkers import.
    text = function.__annotations__.get("return")
    return eval(text, function.__globals__) if isinstance(text, str) else text


def _inside(hint: Any) -> Iterator[type]:
    parts = typing.get_args(hint)
    if parts or isinstance(hint, types.UnionType):
        for part in parts:
            yield from _inside(part)
    elif inspect.isclass(hint) and hint.__module__.startswith("vlhmm"):
        yield hint


def written() -> str:
    return "".join(f"{one}\n" for one in public_names())


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
