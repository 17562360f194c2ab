"""Constraints as they are written in JSON: OpenAI's `response_format`, `guided_...` of vLLM, and our own `constraint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlhmm.control import (
    Constraint,
    contains,
    ends_with,
    excludes,
    in_order,
    length,
    regex,
    starts_with,
    words,
)
from vlhmm.control.constraints import all_of, any_of
from vlhmm.server.errors import RequestError, shown
from vlhmm.server.fields import Fields

MAX_PHRASES = 256
MAX_DEPTH = 8
KEYS = (
    "contains",
    "contains_any",
    "in_order",
    "excludes",
    "starts_with",
    "ends_with",
    "words",
    "length",
    "regex",
    "choice",
    "json_schema",
    "all",
    "any",
    "not",
)
"""What a constraint object may hold; all of it must be satisfied."""


def asked_constraint(fields: Fields) -> tuple[Constraint | None, list[str]]:
    """The constraint of a completion request, and warnings."""
    given = [
        key
        for key in ("response_format", "guided_regex", "guided_choice", "guided_json", "constraint")
        if key in fields
    ]
    if len(given) > 1:
        raise RequestError(
            f"{' and '.join(given)} are given together, but a text is held to one of them: combine them in `constraint`",
            param=given[1],
        )
    if "response_format" in fields:
        return _response_format(fields)
    for key, make in (
        ("guided_regex", lambda: _made("guided_regex", lambda: regex(fields.text("guided_regex")))),
        ("guided_choice", lambda: choice_of("guided_choice", fields.texts("guided_choice", MAX_PHRASES))),
        ("guided_json", lambda: schema_of("guided_json", fields.raw("guided_json"))),
    ):
        if key in fields:
            return make(), []
    asked = fields.object("constraint")
    if asked is None:
        return None, []
    return constraint_of(asked), asked.warnings()


def _response_format(fields: Fields) -> tuple[Constraint | None, list[str]]:
    wanted = fields.object("response_format")
    assert wanted is not None
    kind = wanted.text("type")
    if kind == "text":
        return None, wanted.warnings()
    if kind != "json_schema":
        raise wanted.error("type", f'is {shown(kind)}, but "text" and "json_schema" are known')
    schema = wanted.object("json_schema")
    if schema is None:
        raise wanted.error("json_schema", "is missing: give an object with a schema")
    for ignored in ("name", "description", "strict"):
        schema.raw(ignored)
    found = schema_of("response_format.json_schema.schema", schema.raw("schema"))
    return found, wanted.warnings() + schema.warnings()


def constraint_of(fields: Fields, depth: int = 0) -> Constraint:
    """A constraint object."""
    if depth > MAX_DEPTH:
        raise RequestError(f"the constraint is nested {depth} deep, but the limit is {MAX_DEPTH}", param="constraint")
    options: dict[str, Any] = {
        "whole_words": fields.flag("whole_words", True),
        "ignore_case": fields.flag("ignore_case", False),
    }
    parts: list[Constraint] = []

    def add(key: str, make: Callable[[], Constraint]) -> None:
        if key in fields:
            parts.append(_made(key, make, fields))

    for key, every in (("contains", True), ("contains_any", False), ("excludes", True)):
        phrases = fields.texts(key, MAX_PHRASES)
        make = excludes if key == "excludes" else contains
        made = [_made(key, lambda phrase=phrase, make=make: make(phrase, **options), fields) for phrase in phrases]  # type: ignore[misc]
        if made:
            parts.append(all_of(made) if every else any_of(made))
    add("in_order", lambda: in_order(*fields.texts("in_order", MAX_PHRASES), **options))
    add("starts_with", lambda: starts_with(fields.text("starts_with"), **options))
    add("ends_with", lambda: ends_with(fields.text("ends_with"), **options))
    add("words", lambda: words(*_range(fields, "words")))
    add("length", lambda: length(*_range(fields, "length")))
    add("regex", lambda: regex(fields.text("regex")))
    add("choice", lambda: choice_of("choice", fields.texts("choice", MAX_PHRASES)))
    add("json_schema", lambda: schema_of("json_schema", fields.raw("json_schema")))
    for key, join in (("all", all_of), ("any", any_of)):
        add(key, lambda key=key, join=join: join([_inner(fields, key, one, depth) for one in _objects(fields, key)]))  # type: ignore[misc]
    add("not", lambda: ~_inner(fields, "not", fields.raw("not"), depth))
    if not parts:
        raise RequestError(f"the constraint says nothing: give at least one of {', '.join(KEYS)}", param="constraint")
    return all_of(parts)


def _objects(fields: Fields, key: str) -> list[Any]:
    value = fields.raw(key)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PHRASES:
        raise fields.error(key, f"is {shown(value)}, but a list of 1 to {MAX_PHRASES} constraints is needed")
    return value


def _inner(fields: Fields, key: str, value: Any, depth: int) -> Constraint:
    if not isinstance(value, dict):
        raise fields.error(key, f"has {shown(value)}, but a constraint object is needed")
    inner = Fields(value, f"constraint.{key}.")
    found = constraint_of(inner, depth + 1)
    if inner.unread():
        raise inner.error(inner.unread()[0], f"is not known; known are {', '.join(KEYS)}")
    return found


def _range(fields: Fields, key: str) -> tuple[int, int | None]:
    """[5, 8], [5, null] or 5."""
    value = fields.raw(key)
    numbers: Any = [value, value] if isinstance(value, int | float) else value
    if isinstance(numbers, list):
        # 2.0 is an integer of JSON.
        numbers = [int(one) if isinstance(one, float) and one.is_integer() else one for one in numbers]
    match numbers:
        case [int(), int() | None] if not any(isinstance(one, bool) for one in numbers):
            return numbers[0], numbers[1]
    raise fields.error(key, f"is {shown(value)}, but two numbers are needed: [5, 8], or [5, null]")


def choice_of(key: str, texts: list[str]) -> Constraint:
    from vlhmm.control import choice

    if not texts:
        raise RequestError(f"{key} has 0 texts, but at least 1 is needed", param=key)
    return _made(key, lambda: choice(texts))


def schema_of(key: str, schema: Any) -> Constraint:
    from vlhmm.control import json_schema

    if not isinstance(schema, dict | bool):
        raise RequestError(f"{key} is {shown(schema)}, but a JSON schema is needed: an object", param=key)
    return _made(key, lambda: json_schema(schema))


def _made(key: str, make: Callable[[], Constraint], fields: Fields | None = None) -> Constraint:
    try:
        return make()
    except ValueError as error:
        name = key if fields is None else fields.error(key, "").param
        raise RequestError(f"{name}: {error}", param=name) from None
    except RecursionError:
        raise RequestError(f"{key} is nested too deeply: make it simpler", param=key) from None
