"""Keywords of a JSON schema that combine schemas: `$ref`, `allOf`, `oneOf`, and values beside other keywords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

Schema = dict[str, Any] | bool

ANNOTATIONS: Final = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "$anchor",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "discriminator",
    ]
)


@dataclass(frozen=True)
class Place:
    """A schema, where it stands, and what was passed on the way to it."""

    schema: Any
    path: str = "#"
    references: tuple[str, ...] = ()

    def at(self, *steps: str | int) -> Place:
        schema, path = self.schema, self.path
        for step in steps:
            schema, path = schema[step], f"{path}/{step}"
        return Place(schema, path, self.references)

    def of(self, schema: Any) -> Place:
        return Place(schema, self.path, self.references)

    def refused(self, what: str, remedy: str) -> ValueError:
        return ValueError(f"the JSON schema has {what} at {self.path}, which is not supported; {remedy}")


class Combining:
    """Merges schemas into one where the outcome says the same; refuses what cannot be merged.

    Args:
        root: The whole schema, which references point into.
        validator: Of the `jsonschema` package, for `root`.
        max_depth: How deep a reference may be nested in itself.
    """

    def __init__(self, root: Schema, validator: Any, max_depth: int) -> None:
        self.root, self.validator, self.max_depth = root, validator, max_depth

    def values(self, place: Place) -> list[Any]:
        """Those of `enum` or `const` that satisfy all of the schema."""
        schema = place.schema
        listed = "enum" if "enum" in schema else "const"
        # They are not compared with the list itself, which takes long where it is long.
        others = {name: value for name, value in schema.items() if name != listed}
        validator = self.validator.evolve(schema=others, format_checker=self.validator.FORMAT_CHECKER)
        candidates = schema["enum"] if listed == "enum" else [schema["const"]]
        return [value for value in candidates if validator.is_valid(value)]

    def _resolved(self, place: Place) -> Place | None:
        """What a reference stands for, without what stands beside it; None where it is nested too deep in itself."""
        name = place.schema["$ref"]
        references = (*place.references, name)
        if len(references) - len(set(references)) >= self.max_depth:
            return None
        if not name.startswith("#") or (name != "#" and not name.startswith("#/")):
            raise place.at("$ref").refused(
                f"the reference {name!r}", "refer to a place in the schema, as in #/$defs/name"
            )
        schema: Any = self.root
        for step in name.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(step) if isinstance(schema, list) else step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"the JSON schema refers to {name!r} at {place.path}, which is not there") from None
        return Place(schema, name, references)

    def merged(self, place: Place) -> Place | None:
        """A schema without `$ref` and `allOf`: what they say is merged into one."""
        others = {name: value for name, value in place.schema.items() if name not in ("$ref", "allOf")}
        parts: list[Place | None] = []
        if "$ref" in place.schema:
            parts.append(self._resolved(place))
        parts += [place.at("allOf", number) for number in range(len(place.schema.get("allOf", [])))]
        merged: Place | None = place.of(others)
        for part in parts:
            merged = None if part is None or merged is None else self.both(part, merged)
        return merged

    def both(self, first: Place, second: Place) -> Place | None:
        """One schema for values that satisfy two."""
        places: list[Place] = []
        for place in (first, second):
            if isinstance(place.schema, dict) and ("$ref" in place.schema or "allOf" in place.schema):
                found = self.merged(place)
                if found is None:
                    return None
                place = found
            places.append(place)
        first, second = places
        references = max(first.references, second.references, key=len)
        if isinstance(first.schema, bool) or isinstance(second.schema, bool):
            if first.schema is False or second.schema is False:
                return None
            return first if second.schema is True else second
        one, other = _without_annotations(first.schema), _without_annotations(second.schema)
        if not one or not other:
            path = first.path if one else second.path
            return Place(one or other, path, references)
        _require_named(one, other, first, second)
        _require_same_items(one, other, first, second)
        merged = dict(one)
        for name, value in other.items():
            merged[name] = value if name not in one else self._both_values(name, one[name], value, first, second)
        return Place(merged, first.path, references)

    def _both_values(self, name: str, one: Any, other: Any, first: Place, second: Place) -> Any:
        if one == other and type(one) is type(other):
            return one
        match name:
            case "properties":
                shared = {key: {"allOf": [one[key], other[key]]} for key in one if key in other}
                return {**one, **other, **shared}
            case "required":
                return list(dict.fromkeys([*one, *other]))
            case "type":
                types = [[types] if isinstance(types, str) else types for types in (one, other)]
                common = [kind for kind in types[0] if kind in types[1]]
                if any("integer" in types[i] and "number" in types[1 - i] for i in (0, 1)) and "integer" not in common:
                    common.append("integer")
                # No type at all is a schema that nothing satisfies.
                return common
            case "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum":
                return max(one, other)
            case "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum":
                return min(one, other)
            case "additionalProperties" if one is False or other is False:
                return False
            case "items" | "additionalProperties":
                return {"allOf": [one, other]}
            case _:
                raise first.refused(
                    f"another {name!r} than {second.path}, which holds for the same value", "write one schema for both"
                )

    def require_apart(self, branches: list[Place], place: Place) -> None:
        """`oneOf` is `anyOf` where no value satisfies two branches."""
        for number, one in enumerate(branches):
            for another, other in enumerate(branches[:number]):
                if not self._apart(one, other):
                    raise place.at("oneOf").refused(
                        f"oneOf whose branches {another} and {number} may hold for the same value",
                        "use anyOf, or give both a required property with different const values",
                    )

    def _apart(self, one: Place, other: Place) -> bool:
        """Whether it is plain that no value satisfies both."""
        schemas = []
        for place in (one, other):
            found: Place | None = place
            if isinstance(place.schema, dict) and ("$ref" in place.schema or "allOf" in place.schema):
                found = self.merged(place)
            if found is None or found.schema is False:
                return True
            if found.schema is True:
                return False
            schemas.append(found.schema)
        for mine, its in (schemas, schemas[::-1]):
            if "enum" in mine or "const" in mine:
                validator = self.validator.evolve(schema=its)
                return not any(validator.is_valid(value) for value in self.values(one.of(mine)))
        if all("type" in schema for schema in schemas):
            kinds = [{schema["type"]} if isinstance(schema["type"], str) else set(schema["type"]) for schema in schemas]
            kinds = [{"number" if kind == "integer" else kind for kind in found} for found in kinds]
            if not kinds[0] & kinds[1]:
                return True
            if kinds[0] & kinds[1] == {"object"}:
                shared = set(schemas[0].get("required", [])) & set(schemas[1].get("required", []))
                return any(
                    all(name in schema.get("properties", {}) for schema in schemas)
                    and self._apart(*(one.of(schema["properties"][name]) for schema in schemas))
                    for name in shared
                )
        return False


def _require_named(one: dict[str, Any], other: dict[str, Any], first: Place, second: Place) -> None:
    """Properties that only one schema names must be none to which the other's `additionalProperties` applies."""
    for mine, its, place in ((one, other, first), (other, one, second)):
        allowed = mine.get("additionalProperties", True)
        beyond = sorted({*its.get("properties", {}), *its.get("required", [])} - set(mine.get("properties", {})))
        if allowed is not True and beyond:
            raise place.refused(
                f"additionalProperties beside properties of another schema ({beyond[0]!r})",
                "name them here too, or leave it out",
            )


def _require_same_items(one: dict[str, Any], other: dict[str, Any], first: Place, second: Place) -> None:
    """Where an item's place says which schema it has, two such lists are not merged."""
    items, others = (
        {name: schema[name] for name in ("prefixItems", "items", "additionalItems") if name in schema}
        for schema in (one, other)
    )
    by_place = any("prefixItems" in some or isinstance(some.get("items"), list) for some in (items, others))
    if by_place and items and others and items != others:
        raise first.refused(f"other items than {second.path}, by their places", "write one schema for both")


def _without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in ANNOTATIONS}
