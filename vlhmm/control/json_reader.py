"""How a JSON schema is read: each of its parts becomes a part of an automaton.

A part that cannot be held to exactly is refused, with its place in the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from vlhmm.arguments import check_text
from vlhmm.control import byte_parts as bp
from vlhmm.control import json_values as values
from vlhmm.control.json_combining import ANNOTATIONS, Combining, Place, Schema
from vlhmm.control.minimise import minimised
from vlhmm.control.operations import TooManyStates
from vlhmm.control.regex import pattern_automaton
from vlhmm.control.time_limit import check_time

MAX_READ: Final = 5_000
"""Schemas within a schema, each as often as it is referred to."""

_OF_TYPE: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type")
_KNOWN: Final = ANNOTATIONS.union(_COMBINING, *_OF_TYPE.values())
_WITHOUT_EFFECT: Final = {"uniqueItems": False, "unevaluatedProperties": False, "unevaluatedItems": False}
"""Values of keywords that change nothing about what is written."""


@dataclass(frozen=True)
class ReadingOptions:
    """What the schema does not say itself; see `json_schema`."""

    white_space: str
    max_depth: int
    max_length: int | None
    max_items: int | None


class SchemaReader:
    """Schemas to parts of an automaton; None where no value satisfies one."""

    def __init__(self, root: Schema, validator: Any, options: ReadingOptions) -> None:
        self.root, self.options = root, options
        self.combining = Combining(root, validator, options.max_depth)
        white = minimised(pattern_automaton(options.white_space))
        self.white = bp.automaton(lambda: white)
        self.comma = bp.sequence(self.white, bp.literal(","), self.white)
        self.num_read = 0

    def part(self) -> bp.Part | None:
        return self._read(Place(self.root))

    def _read(self, place: Place) -> bp.Part | None:
        self.num_read += 1
        check_time("schemas read", self.num_read)
        if self.num_read > MAX_READ:
            raise ValueError(
                f"the JSON schema has more than {MAX_READ:,} parts, each counted as often as it is referred to; "
                "make it smaller, or give a smaller max_depth"
            )
        schema = place.schema
        if isinstance(schema, bool):
            return self._anything(self.options.max_depth) if schema else None
        # Values are known: whatever else the schema says, they are checked against it.
        if "enum" in schema or "const" in schema:
            return self._literals(self.combining.values(place), place)
        self._check_keywords(place)
        if "$ref" in schema or "allOf" in schema:
            merged = self.combining.merged(place)
            return None if merged is None else self._read(merged)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                others = {name: value for name, value in schema.items() if name != keyword}
                branches = [place.at(keyword, number) for number in range(len(schema[keyword]))]
                if keyword == "oneOf":
                    self.combining.require_apart(branches, place)
                return bp.one_of(
                    self._read(both)
                    for branch in branches
                    if (both := self.combining.both(branch, place.of(others))) is not None
                )
        types = schema.get("type")
        if types is None:
            types = [name for name, keywords in _OF_TYPE.items() if any(keyword in schema for keyword in keywords)]
            if not types:
                return self._anything(self.options.max_depth)
        types = [types] if isinstance(types, str) else types
        return bp.one_of(self._of_type(name, place) for name in types if not (name == "integer" and "number" in types))

    def _check_keywords(self, place: Place) -> None:
        for name, value in place.schema.items():
            if name in _KNOWN or name.startswith("x-"):
                if name == "$id" and place.path != "#":
                    raise place.refused(
                        "'$id'", "leave it out, and refer to schemas by their place, as in #/$defs/name"
                    )
                continue
            if name in _WITHOUT_EFFECT and value is _WITHOUT_EFFECT[name]:
                continue
            if name == "uniqueItems" and place.schema.get("maxItems", 2) < 2:
                continue
            raise place.refused(f"{name!r}", "leave it out, or ask for the same by other keywords")

    def _of_type(self, name: str, place: Place) -> bp.Part | None:
        match name:
            case "object":
                return self._object(place)
            case "array":
                return self._array(place)
            case "string":
                return self._string(place)
            case "number" | "integer":
                return self._number(place, integer=name == "integer")
            case "boolean":
                return bp.one_of([bp.literal("true"), bp.literal("false")])
            case _:
                return bp.literal("null")

    def _string(self, place: Place) -> bp.Part | None:
        schema = place.schema
        patterns: tuple[str, ...] = ()
        if "pattern" in schema:
            patterns += (schema["pattern"],)
        if "format" in schema:
            if schema["format"] not in values.FORMATS:
                known = ", ".join(sorted(values.FORMATS))
                raise place.at("format").refused(
                    f"the format {schema['format']!r}", f"leave it out, write a pattern, or use one of {known}"
                )
            patterns += values.format_patterns(schema["format"])
        try:
            return values.string(
                int(schema.get("minLength", 0)), _integer(schema.get("maxLength", self.options.max_length)), patterns
            )
        except TooManyStates:
            raise
        except ValueError as error:
            raise ValueError(
                f"the JSON schema has a pattern at {place.path}/pattern that cannot be used: {error}"
            ) from None

    def _number(self, place: Place, *, integer: bool) -> bp.Part | None:
        schema = place.schema

        def bound(closed: str, opened: str, stricter: Callable[[list[Any]], Any]) -> tuple[Decimal | None, bool]:
            # The stricter of the two; of equal ones the open one.
            found = [(_decimal(schema[name]), name == opened) for name in (closed, opened) if name in schema]
            if not found:
                return None, False
            limit = stricter([value for value, _ in found])
            return limit, any(is_open for value, is_open in found if value == limit)

        low, low_open = bound("minimum", "exclusiveMinimum", max)
        high, high_open = bound("maximum", "exclusiveMaximum", min)
        multiple, decimals = _decimal(schema.get("multipleOf", 1)), None
        if "multipleOf" in schema:
            if multiple == multiple.to_integral_value():
                integer = True
            elif multiple.normalize().as_tuple().digits == (1,) and not integer:
                decimals = -int(multiple.normalize().as_tuple().exponent)
            else:
                raise place.at("multipleOf").refused(
                    f"multipleOf {schema['multipleOf']}", "use an integer, or 0.1, 0.01 and so on for decimals"
                )
        limits = values.Limits(low, high, low_open, high_open, integer, int(multiple) if integer else 1, decimals)
        return values.number(limits if integer else values.beyond_rounding(limits))

    def _array(self, place: Place) -> bp.Part | None:
        schema = place.schema
        if "prefixItems" in schema and "prefixItems" not in self.combining.validator.VALIDATORS:
            raise place.at("prefixItems").refused(
                "prefixItems in a draft before 2020-12", "write items as a list, or leave out $schema"
            )
        least, most = int(schema.get("minItems", 0)), _integer(schema.get("maxItems", self.options.max_items))
        if isinstance(schema.get("items"), list):  # before draft 2020-12
            prefix = [place.at("items", number) for number in range(len(schema["items"]))]
            rest = place.at("additionalItems") if "additionalItems" in schema else None
        else:
            prefix = [place.at("prefixItems", number) for number in range(len(schema.get("prefixItems", [])))]
            rest = place.at("items") if "items" in schema else None if prefix else place.of(True)
        if rest is None:
            most = len(prefix) if most is None else min(most, len(prefix))
        first = [self._read(item) for item in prefix]
        other = None if rest is None else self._read(rest)
        if not prefix:
            return self._enclosed("[]", bp.repeated(other, least, most, self.comma))
        # Arrays of each length up to that of the prefix, and longer ones.
        lengths: list[bp.Part | None] = []
        for number in range(least, len(prefix) + (most is None or most >= len(prefix))):
            if most is not None and number > most:
                break
            lengths.append(_joined(first[:number], self.comma))
        if most is None or most > len(prefix):
            more = bp.repeated(
                bp.sequence(self.comma, other),
                max(1, least - len(prefix)),
                None if most is None else most - len(prefix),
            )
            lengths.append(bp.sequence(_joined(first, self.comma), more))
        return self._enclosed("[]", bp.one_of(lengths))

    def _object(self, place: Place) -> bp.Part | None:
        schema = place.schema
        required = dict.fromkeys(schema.get("required", []))
        least, most = int(schema.get("minProperties", 0)), _integer(schema.get("maxProperties"))
        named = {name: place.at("properties", name) for name in schema.get("properties", {})}
        others: Any = schema.get("additionalProperties", True)
        if not named and not required and others is not False:
            return self._map(place, others, least, most)
        for name in required:
            if name not in named:
                named[name] = place.of(others) if isinstance(others, bool) else place.at("additionalProperties")
        if least > len(named) and others is not False:
            raise place.at("minProperties").refused(
                f"minProperties {least} with {len(named)} properties", "name more of them"
            )
        read = {name: self._read(schema) for name, schema in named.items()}
        if any(read[name] is None for name in required):
            return None
        pairs = [
            (name in required, self._pair(bp.literal(_dumped(name, place)), part))
            for name, part in read.items()
            if part is not None
        ]
        num_required = len(required)
        if least > len(pairs) or (most is not None and most < num_required):
            return None
        counted = least > num_required or (most is not None and most < len(pairs))
        return self._enclosed("{}", self._properties(pairs, least, most if counted else None, counted))

    def _properties(
        self, pairs: list[tuple[bool, bp.Part | None]], least: int, most: int | None, counted: bool
    ) -> bp.Part:
        """The pairs in their order, each unless it is optional; at least and at most so many."""
        comma = self.comma
        assert comma is not None

        def add(nodes: bp.Nodes, begin: int) -> int:
            # By how many were written, or whether any were: the node after them.
            after = {0: begin}
            for needed, pair in pairs:
                assert pair is not None
                following: dict[int, int] = {}
                sources: dict[int, list[int]] = {}
                for count, node in after.items():
                    if not needed:
                        following.setdefault(count, nodes.new())
                        nodes.skips[node].append(following[count])
                    written = count + 1 if counted else 1
                    if most is None or written <= most:
                        sources.setdefault(written, []).append(node if count == 0 else comma(nodes, node))
                for written, begins in sources.items():
                    first = nodes.new()
                    for node in begins:
                        nodes.skips[node].append(first)
                    following.setdefault(written, nodes.new())
                    nodes.skips[pair(nodes, first)].append(following[written])
                after = following
            end = nodes.new()
            for count, node in after.items():
                if not counted or count >= least:
                    nodes.skips[node].append(end)
            return end

        return add

    def _map(self, place: Place, others: Any, least: int, most: int | None) -> bp.Part | None:
        """Any names, which may occur twice: the last one counts."""
        if least > 1:
            raise place.at("minProperties").refused(f"minProperties {least} without properties", "name the properties")
        value = (
            self._anything(self.options.max_depth - 1)
            if others is True
            else self._read(place.at("additionalProperties"))
        )
        most = self.options.max_items if most is None else most
        return self._enclosed("{}", bp.repeated(self._pair(self._any_string(), value), least, most, self.comma))

    def _anything(self, depth: int) -> bp.Part | None:
        """Any value whose arrays and objects are nested so deep at most."""
        parts = [self._any_string(), values.number(values.Limits()), *map(bp.literal, ("true", "false", "null"))]
        if depth > 0:
            inner = self._anything(depth - 1)
            most = self.options.max_items
            parts.append(self._enclosed("[]", bp.repeated(inner, 0, most, self.comma)))
            parts.append(self._enclosed("{}", bp.repeated(self._pair(self._any_string(), inner), 0, most, self.comma)))
        return bp.one_of(parts)

    def _any_string(self) -> bp.Part | None:
        return values.string(0, self.options.max_length)

    def _pair(self, name: bp.Part | None, value: bp.Part | None) -> bp.Part | None:
        return bp.sequence(name, self.white, bp.literal(":"), self.white, value)

    def _enclosed(self, brackets: str, inside: bp.Part | None) -> bp.Part | None:
        return bp.sequence(bp.literal(brackets[0]), self.white, inside, self.white, bp.literal(brackets[1]))

    def _literals(self, some: list[Any], place: Place) -> bp.Part | None:
        # As one tree: there may be thousands.
        scalars = [_dumped(value, place) for value in some if not isinstance(value, list | dict)]
        parts = [self._literal(value, place) for value in some if isinstance(value, list | dict)]
        return bp.one_of([*parts, *([bp.automaton(lambda: bp.texts(scalars))] if scalars else [])])

    def _literal(self, value: Any, place: Place) -> bp.Part | None:
        match value:
            case list():
                return self._enclosed("[]", _joined([self._literal(item, place) for item in value], self.comma))
            case dict():
                pairs = [
                    self._pair(bp.literal(_dumped(name, place)), self._literal(item, place))
                    for name, item in value.items()
                ]
                return self._enclosed("{}", _joined(pairs, self.comma))
            case _:
                return bp.literal(_dumped(value, place))


def _joined(parts: Iterable[bp.Part | None], between: bp.Part | None) -> bp.Part | None:
    every: list[bp.Part | None] = []
    for part in parts:
        every += [between, part] if every else [part]
    return bp.sequence(*every)


def _integer(limit: Any) -> int | None:
    return None if limit is None else int(limit)


def _decimal(limit: Any) -> Decimal:
    return Decimal(repr(limit))


def _dumped(value: Any, place: Place) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    check_text(f"a value of the JSON schema at {place.path}", text)
    return text
