"""Every text that a JSON schema's automaton accepts parses and satisfies the schema, and what satisfies a schema is not all refused."""

import json
import random
import re
from decimal import Decimal
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vlhmm.control import Automaton, TokenTexts, choice, json_schema
from vlhmm.control.byte_parts import compiled
from vlhmm.control.json_values import FORMATS, Limits, number

NAMES = ["a", "b c", 'say "x"', "back\\slash", "line\nbreak", "é", "💡", "", "/~"]
PATTERNS = ["^[A-Z]{2}", "[0-9]+$", "^(a|é|💡)*$", r"\w \w", r"^\S+@x$", '"', r"\\", r"^[^a-z]{1,3}$", r"\n", "^$|b"]


def texts_of(automaton: Automaton, draw: random.Random, count: int, soft_limit: int = 60) -> list[str]:
    """Random texts that an automaton over bytes accepts, which turn to the nearest end after so many bytes."""
    steps = automaton.shortest().tolist()
    assert steps[automaton.start] < torch.inf
    bytes_of = [np.flatnonzero(automaton.class_of_token.numpy() == c).tolist() for c in range(automaton.num_classes)]
    next_state, accepting = automaton.next_state.tolist(), automaton.accepting.tolist()
    found = []
    for _ in range(count):
        state, text = automaton.start, bytearray()
        while not (accepting[state] and (draw.random() < 0.3 or (steps[state] == 0 and len(text) >= soft_limit))):
            leads = [(c, t) for c, t in enumerate(next_state[state]) if steps[t] < torch.inf]
            if not leads:
                break
            if len(text) >= soft_limit:
                leads = [(c, t) for c, t in leads if steps[t] < steps[state]]
            class_, state = draw.choice(leads)
            text.append(draw.choice(bytes_of[class_]))
        assert accepting[state]
        found.append(text.decode())
    return found


def assert_valid(schema: Any, texts: list[str]) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    for text in texts:
        value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        errors = [error.message for error in validator.iter_errors(value)]
        assert errors == [], (schema, text)


_limits = st.integers(-30, 30) | st.decimals(-20, 20, places=2).map(float)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(-9, 9).map(lambda x: round(x, 3))
    | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=3,
)


def _ranges(low: str, high: str, sizes: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    both = st.tuples(sizes, sizes).map(sorted).map(lambda pair: {low: pair[0], high: pair[1]})
    return both | st.fixed_dictionaries({}, optional={low: sizes})


_strings = st.tuples(
    _ranges("minLength", "maxLength", st.integers(0, 4))
    | st.fixed_dictionaries({}, optional={"pattern": st.sampled_from(PATTERNS)})
).map(lambda parts: {"type": "string", **parts[0]})
_numbers = st.one_of(
    st.tuples(
        st.sampled_from(["integer", "number"]),
        _ranges("minimum", "maximum", _limits),
        st.sampled_from([{}, {}, {"exclusiveMinimum": -7}]),
    ).map(lambda parts: {"type": parts[0], **parts[1], **parts[2]}),
    st.sampled_from([2, 3, 7, 5.0]).map(lambda m: {"type": "integer", "multipleOf": m, "minimum": -40}),
)
_leaves = st.one_of(
    _strings,
    _numbers,
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["null", "integer"]}, True, {}, {"title": "any"}]),
    st.lists(_values, min_size=1, max_size=3).map(lambda found: {"enum": found}),
    _values.map(lambda value: {"const": value}),
    st.sampled_from(sorted(FORMATS)).map(lambda name: {"type": "string", "format": name}),
    st.just({"$ref": "#/$defs/tree"}),
)


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties and draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([True, False, {"type": "integer"}]))
    if properties and draw(st.integers(0, 3)) == 0:
        schema["minProperties"] = draw(st.integers(0, len(properties)))
    if draw(st.integers(0, 3)) == 0:
        schema["maxProperties"] = draw(st.integers(len(schema.get("required", [])), 4))
    return schema


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(inner, _ranges("minItems", "maxItems", st.integers(0, 3))).map(
            lambda p: {"type": "array", "items": p[0], **p[1]}
        ),
        st.tuples(
            st.lists(inner, min_size=1, max_size=2),
            st.sampled_from([{}, {"items": False}, {"items": {"type": "null"}, "minItems": 1}]),
        ).map(lambda p: {"type": "array", "prefixItems": p[0], **p[1]}),
        _objects(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
        inner.map(lambda one: {"allOf": [one]}),
        inner.map(lambda one: {"type": "object", "additionalProperties": one}),
    )


TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}},
    "required": ["value"],
}


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.recursive(_leaves, _grown, max_leaves=6), st.sampled_from([" ?", "", "[ \n]{0,2}"]), st.integers(0, 999))
def test_every_text_parses_and_satisfies_the_schema(schema: Any, white_space: str, seed: int) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"tree": TREE}}
    elif schema is True:
        schema = {"$defs": {"tree": TREE}}
    try:
        automaton = json_schema(schema, white_space=white_space, max_depth=2).over_bytes()
    except ValueError as refusal:
        if not re.search("no JSON value|automaton states", str(refusal)):
            raise
        return
    if not automaton.is_empty:
        assert_valid(schema, texts_of(automaton, random.Random(seed), 12))


LONG = [f"value {number * 7919}" for number in range(10_000)]
ESCAPED = ['"', "\\", "\n", "", "\x01", "é💡", "a/b", "~"]
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "schema",
    [
        {"const": None},
        {"const": '"\\\n\t\x00\x1f\x7f\u2028💡/'},
        {"const": {"a\n": [1, {"b": None}], "": [], "c": {}}},
        {"const": 10**30},
        {"type": "object", "properties": {name: {"const": name} for name in ESCAPED}, "required": ESCAPED},
        {"type": "string", "minLength": 2, "maxLength": 2},
        {"type": "string", "pattern": '^[é💡"]*$', "minLength": 2, "maxLength": 2},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-20},
        {"type": "number", "exclusiveMinimum": 0.12345678901234567, "exclusiveMaximum": 0.12345678901234569},
        {"type": "number", "exclusiveMinimum": -0.30000000000000004, "maximum": -0.3},
        {"type": "number", "minimum": 3, "exclusiveMinimum": 3, "maximum": 3.01},
        {"type": "integer", "exclusiveMinimum": 2**63, "maximum": 2**63 + 2},
        {"additionalProperties": {"type": "string", "maxLength": 2}, "type": "object", "maxProperties": 2},
        {"type": "object", "required": ["b"], "additionalProperties": {"const": 1}, "properties": {"a": {"const": 2}}},
        {"enum": [*LONG, {"a": [LONG[0]]}, "2024-01-01"], "type": ["string", "object"]},
        {"enum": ["abc", "2024-01-01"], "format": "date"},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "null"}, "a%20b": {"type": "integer"}}},
        {"$ref": "#/$defs/a~1b~01", "$defs": {"a/b~1": {"type": "null"}}},
        {"$schema": DRAFT_7, "type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
        {"anyOf": [False, {"const": 1}]},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_every_text_of_an_ugly_schema_parses_and_satisfies_it(schema: Any) -> None:
    assert_valid(schema, texts_of(json_schema(schema).over_bytes(), random.Random(0), 12))


def test_multiples_of_a_tenth_are_those_of_decimal_arithmetic() -> None:
    schema = {"type": "number", "multipleOf": 0.1, "exclusiveMinimum": -3, "maximum": 3}
    texts = texts_of(json_schema(schema).over_bytes(), random.Random(0), 40)
    exact = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
    assert all(exact.is_valid(json.loads(text, parse_float=Decimal)) for text in texts)
    assert "0.3" in texts or "-0.3" in texts


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1},
        {"type": "string", "format": "uuid", "maxLength": 5},
        {"type": "string", "pattern": "^\ud800$"},
    ],
)
def test_what_no_value_satisfies_has_no_text(schema: Any) -> None:
    assert json_schema(schema).over_bytes().is_empty


def _arrays(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


ENDLESS = {"A": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/A"}}}}
ENDLESS["B"] = {**ENDLESS["A"], "properties": {"x": {"$ref": "#/$defs/B"}}}

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 1}, "b": {"type": "number"}, "c": {"type": "boolean"}},
    "required": ["b"],
}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (SCHEMA, '{"b":1}', True),
        (SCHEMA, '{"a": "x\\n\\"", "b": -0.5, "c": true}', True),
        (SCHEMA, '{"a": "", "b": 1}', False),
        (SCHEMA, '{"c": true, "b": 1}', False),
        (SCHEMA, ' {"b":1}', False),
        (SCHEMA, '{"b":1,}', False),
        ({"const": "a\nb"}, '"a\\nb"', True),
        ({"enum": [1]}, "1", True),
        ({"enum": [True, 1], "type": "integer"}, "true", False),
        ({"type": "number"}, "1e5", True),
        ({"type": "number"}, "01", False),
        ({"type": "integer", "minimum": 2**63}, str(2**63), True),
        ({"type": "integer", "minimum": 2**63}, str(2**63 - 1), False),
        ({"type": "string", "pattern": "b"}, '"abc"', True),
        ({"type": "string", "pattern": "^b"}, '"abc"', False),
        ({"type": "string"}, '"\ud83d\udca1"'.encode("utf-16", "surrogatepass").decode("utf-16"), True),
        ({"type": "object"}, '{"x": [1, {"y": null}]}', True),
        (True, "[[[1]]]", True),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, '{"value": 1, "left": {"value": 2}}', True),
        ({"type": "string", "format": "date"}, '"2023-02-29"', False),
        ({"type": "string", "format": "date"}, '"2024-02-29"', True),
    ],
)
def test_a_text_is_allowed_or_not(schema: Any, text: str, expected: bool) -> None:
    assert json_schema(schema).over_bytes().accepts(text.encode()) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, "'not' at #/properties/a, which is not supported"),
        ({"type": "string", "maxLenght": 3}, "'maxLenght' at #"),
        ({"items": {"uniqueItems": True}}, "'uniqueItems' at #/items"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "branches 0 and 1 may hold for the same value"),
        ({"$ref": "https://example.org/s.json"}, "the reference 'https://example.org/s.json' at #"),
        ({"$ref": "#/$defs/no"}, "'#/\\$defs/no' at #, which is not there"),
        ({"type": "strnig"}, "at #/type, 'strnig' is not valid"),
        ({"type": "string", "pattern": "(?=a)"}, "pattern at #/pattern that cannot be used: .* look-around"),
        ({"type": "string", "format": "iban"}, "the format 'iban' at #/format"),
        ({"type": "number", "multipleOf": 0.3}, "multipleOf 0.3 at #/multipleOf"),
        (False, "no JSON value satisfies the schema"),
        ({"$ref": "#"}, "no JSON value satisfies the schema .* within max_depth 3"),
        ("{", "the schema is no JSON"),
        ("[" * 9000, "nested too deep"),
        (_arrays(3000), "nested too deep"),
        ({"const": 1, "$ref": "#"}, "refers to itself without end"),
        ({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": ENDLESS}, "refers to itself without end"),
        ({"$ref": "#/$defs/A", "$defs": ENDLESS}, "no JSON value satisfies the schema"),
        ({"allOf": [{"$ref": "#"}]}, "no JSON value satisfies the schema"),
        ({"enum": []}, "no JSON value satisfies the schema"),
        ({"const": "\ud800"}, "half of a character"),
        ({"type": "object", "properties": {"\ud800": {}}}, "half of a character"),
        ({"const": float("inf")}, "cannot be written as JSON"),
        ({"properties": {"z": {"patternProperties": {"^a": {}}}}}, "'patternProperties' at #/properties/z"),
        ({"properties": {"a": {}}, "minProperties": 2}, "minProperties 2 with 1 properties at #/minProperties"),
        ({"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 5}}]}, "other items than #/allOf/0"),
        ({"allOf": [{"items": [True]}, {"items": {"minimum": 5}}], "$schema": DRAFT_7}, "other items than #/allOf/0"),
        ({"prefixItems": [True], "$schema": DRAFT_7}, "prefixItems in a draft before 2020-12"),
    ],
)
def test_what_cannot_be_held_to_is_refused_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        json_schema(schema)


@settings(max_examples=25, deadline=None)
@given(
    st.decimals(-120, 120, places=2),
    st.decimals(0, 90, places=2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_numbers_are_allowed_as_decimal_arithmetic_says(
    low: Decimal, width: Decimal, low_open: bool, high_open: bool, places: int
) -> None:
    high = low + width
    automaton = compiled(number(Limits(low, high, low_open, high_open, places == 0, 1, places or None)))
    step = Decimal(1).scaleb(-places)
    near = {(bound / step).to_integral_value() * step + k * step for bound in (low, high) for k in range(-3, 4)} | {
        Decimal(0)
    }
    for value in near:
        inside = (low < value or (low == value and not low_open)) and (
            value < high or (value == high and not high_open)
        )
        text = f"{value.quantize(step):f}".replace("-0.00", "0.00") if value == 0 else f"{value.quantize(step):f}"
        assert automaton.accepts(text.removeprefix("-" if value == 0 else "").encode()) == inside, (text, low, high)


@pytest.mark.parametrize("texts", [["yes", "no"], ["a"], ["", "b"], [" a ", "a"], ['"\n', "é💡", "é"]])
def test_choice_is_these_texts_to_the_letter(texts: list[str]) -> None:
    automaton = choice(texts).over_bytes()
    for text in [*texts, "", "a", " a", "y", "yes ", "é", "no\n"]:
        assert automaton.accepts(text.encode()) == (text in texts)


def test_choice_is_among_texts() -> None:
    for wrong, message in (
        ([], "0 texts"),
        ("yes", "choice is among 'yes'"),
    ):
        with pytest.raises(ValueError, match=message):
            choice(wrong)  # type: ignore[arg-type]


def test_what_sentencepiece_puts_before_the_first_word_is_no_part_of_the_text() -> None:
    texts = TokenTexts((b" yes", b"yes", b" ", b"no"), drops_space=True)
    automaton = choice(["yes", "no"]).compile(texts)
    assert [automaton.accepts(ids) for ids in ([0], [1], [2, 1], [2, 2, 1], [2, 0], [3], [1, 2])] == [
        True,
        True,
        True,
        False,
        False,
        True,
        False,
    ]
