"""JSON schemas of the kinds that programs ask a language model for."""

from __future__ import annotations

from typing import Any

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL_CALL = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "tool": {"const": "search"},
                "arguments": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "minLength": 1},
                        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                    },
                    "required": ["query"],
                },
            },
            "required": ["tool", "arguments"],
        },
        {
            "type": "object",
            "properties": {
                "tool": {"const": "weather"},
                "arguments": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "minLength": 1},
                        "unit": {"enum": ["celsius", "fahrenheit"]},
                        "day": {"type": "string", "format": "date"},
                    },
                    "required": ["city", "unit"],
                },
            },
            "required": ["tool", "arguments"],
        },
    ]
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "placed": {"type": "string", "format": "date-time"},
        "customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "phone": {"type": "string", "pattern": "^[+][0-9]{6,14}$"},
                "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
            },
            "required": ["name", "country"],
        },
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "article": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "price": {"type": "number", "minimum": 0, "multipleOf": 0.01},
                },
                "required": ["article", "count", "price"],
            },
            "minItems": 1,
        },
        "paid": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["id", "placed", "customer", "items", "paid"],
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "left": {"$ref": "#/$defs/node"},
                "right": {"$ref": "#/$defs/node"},
            },
            "required": ["value"],
        }
    },
}
_KINDS: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "number"}]
SETTINGS = {
    "type": "object",
    "properties": {f"option {number}": _KINDS[number % len(_KINDS)] for number in range(20)},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a person": PERSON,
    "a tool call": TOOL_CALL,
    "an order, with formats and patterns": ORDER,
    "a tree, 3 nodes deep": TREE,
    "20 optional properties": SETTINGS,
}
