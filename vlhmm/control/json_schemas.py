"""JSON schemas as automata: `json_schema`.

Every text that the automaton accepts is a JSON value that satisfies the schema. The reverse does not hold: a value has one
spelling, white space aside, its properties come in the order of the schema, and properties that the schema does not name are
not written. What cannot be held to exactly is refused, with its place in the schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, final

from vlhmm.arguments import check_count, check_text
from vlhmm.control import byte_parts as bp
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.json_combining import Schema
from vlhmm.control.json_reader import ReadingOptions, SchemaReader
from vlhmm.control.minimise import minimised
from vlhmm.control.regex import pattern_automaton

WHITE_SPACE: Final = " ?"


@final
@dataclass(frozen=True, repr=False)
class JsonSchema(Constraint):
    text: str
    """The schema as JSON."""
    white_space: str
    max_depth: int
    max_length: int | None
    max_items: int | None

    def __post_init__(self) -> None:
        check_text("white_space", self.white_space)
        check_count("max_depth", self.max_depth)
        for name in ("max_length", "max_items"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if not _only_white_space(minimised(pattern_automaton(self.white_space))):
            raise ValueError(
                f"white_space is {self.white_space!r}, which matches more than JSON's white space: space, \\t, \\n, \\r"
            )
        if self._part() is None:
            raise ValueError(
                "no JSON value satisfies the schema (0 values)"
                f"{' within max_depth ' + str(self.max_depth) if '$ref' in self.text else ''}; change the schema"
            )

    def __repr__(self) -> str:
        options = [
            f", {name}={value!r}"
            for name, default in (
                ("white_space", WHITE_SPACE),
                ("max_depth", 3),
                ("max_length", None),
                ("max_items", None),
            )
            if (value := getattr(self, name)) != default
        ]
        return f"json_schema({self.text}{''.join(options)})"

    def _part(self) -> bp.Part | None:
        root: Schema = json.loads(self.text)
        options = ReadingOptions(self.white_space, self.max_depth, self.max_length, self.max_items)
        return SchemaReader(root, _validator(root), options).part()

    def over_bytes(self) -> Automaton:
        try:
            return bp.compiled(self._part())
        except RecursionError:
            raise _too_deep() from None


def json_schema(
    schema: Schema | str,
    *,
    white_space: str = WHITE_SPACE,
    max_depth: int = 3,
    max_length: int | None = None,
    max_items: int | None = None,
) -> Constraint:
    """Require that the text is JSON that satisfies the schema. Needs the extra `vlhmm[json]`.

    Every text that meets the constraint satisfies the schema. Of the texts that do, some are not written: properties come in
    the schema's order, those that `properties` does not name are left out, characters are escaped only where they must be, and
    numbers have at most 15 digits. Schemas that cannot be held to exactly are refused.
    `multipleOf: 0.1` means the number as it is written: 0.3 is allowed, though programs that divide floating-point numbers find a rest.

    Args:
        schema: The schema, or its JSON text; `{"type": "object"}` for any object, `True` for any value.
        white_space: A pattern of the white space that may stand between the parts of objects and arrays; "" for none.
        max_depth: How deep a `$ref` may be nested in itself, and arrays and objects where the schema allows any value.
        max_length: Largest number of characters of strings that have no `maxLength`; None: no limit.
        max_items: Largest number of items of arrays without `maxItems`, and of properties of objects that name none; None: no limit.

    Returns:
        The constraint.

    Raises:
        ValueError: This is no JSON schema, a keyword is not supported (it is named with its place in the schema), or no value
            satisfies the schema.

    Example:
        >>> schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
        >>> automaton = vlhmm.json_schema(schema).over_bytes()
        >>> automaton.accepts(b'{"age": 7}'), automaton.accepts(b'{"age": -7}'), automaton.accepts(b'{}')
        (True, False, False)
    """
    try:
        return JsonSchema(_text_of(schema), white_space, max_depth, max_length, max_items)
    except RecursionError:
        raise _too_deep() from None


def _text_of(schema: Schema | str) -> str:
    if isinstance(schema, str):
        check_text("the schema", schema)
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"the schema is no JSON ({error}); give a dict, or JSON text") from None
    _check(schema)
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema cannot be written as JSON: {error}") from None


def _too_deep() -> ValueError:
    """Python's own limit: of the schema, of what checks it, or of a reference to itself that no object or array encloses."""
    return ValueError(
        "the JSON schema is nested too deep to be read, or refers to itself without end; "
        "nest fewer schemas, or give a smaller max_depth"
    )


def _validator(schema: Any) -> Any:
    """Of the `jsonschema` package, for the schema's own draft."""
    try:
        from jsonschema import validators
    except ImportError:
        raise ValueError('json_schema needs jsonschema: pip install "vlhmm[json]"') from None
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    if kind in (validators.Draft3Validator, validators.Draft4Validator):
        raise ValueError(f"$schema is {schema['$schema']!r}, but drafts before 6 are not supported: use a newer one")
    return kind(schema)


def _check(schema: Any) -> None:
    if not isinstance(schema, dict | bool):
        raise ValueError(f"the schema is {type(schema).__name__}, but must be a dict, True, or JSON text of one")
    kind = type(_validator(schema))
    from jsonschema.exceptions import SchemaError

    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place = "/".join(["#", *(str(step) for step in error.absolute_path)])
        raise ValueError(f"this is no JSON schema: at {place}, {error.message}") from None


def _only_white_space(automaton: Automaton) -> bool:
    dead = automaton.dead_state()
    leads = (automaton.next_state != -1 if dead is None else automaton.next_state != dead).any(0)
    used = leads[automaton.class_of_token].nonzero()[:, 0].tolist()
    return set(used) <= set(b" \t\n\r")
