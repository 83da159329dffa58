"""Typical JSON schemas with their meaning; each text that follows one is short."""

from typing import Any

NAME = {"type": "string", "maxLength": 8}
COUNT = {"type": "integer", "minimum": 0, "maximum": 99}


def record(**properties: Any) -> dict[str, Any]:
    """Return an object schema with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: list[dict[str, Any]] = [
    {"const": {"a": [1, "x", None, True]}},
    {"enum": ["red", "green", 3, None, {"deep": [1]}]},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["boolean", "null"]},
    {"type": "integer", "minimum": -3, "maximum": 40},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 12},
    {"type": "integer", "minimum": 0, "maximum": 300, "multipleOf": 25},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    {"type": "string", "maxLength": 5},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^[a-f]{2}-[0-9]{1,3}$"},
    {"type": "string", "pattern": "^(ok|failed)$"},
    {"type": "string", "pattern": "a+b", "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": ["string", "null"], "format": "time", "pattern": "^1"},
    {"type": "string", "format": "email", "maxLength": 40},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "array", "items": COUNT, "maxItems": 4},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, COUNT], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "array", "items": COUNT, "maxItems": 2}, "maxItems": 2},
    record(name=NAME, age=COUNT),
    record(tags={"type": "array", "items": NAME, "maxItems": 2}, ok={"type": "boolean"}),
    record(inner=record(inner=record(x=COUNT))),
    record(kind={"const": "ticket"}, priority={"enum": ["low", "high"]}, title=NAME),
    {**record(a=COUNT, b=COUNT, c=COUNT), "required": ["b"]},
    {**record(a=COUNT), "required": [], "minProperties": 1},
    {**record(), "patternProperties": {"^k[0-9]$": COUNT}, "maxProperties": 2},
    {"anyOf": [record(a=COUNT), record(b=NAME), {"type": "null"}]},
    {"oneOf": [{"type": "boolean"}, COUNT]},
    {
        "oneOf": [record(kind={"const": "a"}, x=COUNT), record(kind={"const": "b"}, y=NAME)],
        "discriminator": {"propertyName": "kind"},
    },
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    {"allOf": [record(a=COUNT) | {"additionalProperties": True}, {"maxProperties": 1}]},
    {"$ref": "#/$defs/n", "minimum": 90, "$defs": {"n": COUNT}},
    {"type": "integer", "minimum": 1.5, "maximum": 3.5},
    {"type": "number", "multipleOf": 0.1, "minimum": 0, "maximum": 2},
    {"enum": [1.0, 1e2, 'é\x00"\\\n']},
    {"enum": ["ab", 2, "abc", 5], "anyOf": [{"type": "string", "maxLength": 2}, {"maximum": 3}]},
    {"type": ["string", "null"], "maxLength": 1},
    {**record(a={"$ref": "#/$defs/n"}, b={"$ref": "#/$defs/n"}), "$defs": {"n": COUNT}},
    {**record(first={"$ref": "#/definitions/t~1x"}), "definitions": {"t/x": {"type": "boolean"}}},
    {
        "title": "Ticket",
        "description": "Everything that says nothing about values.",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "x",
        "$id": "https://example.com/ticket",
        "x-order": 3,
        **record(n={**COUNT, "title": "N", "default": 3, "examples": [4], "deprecated": False}),
    },
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": record(
                value=COUNT,
                children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            )
        },
    },
]
