"""Grammars of arguments that are not written as one JSON object: between tags, or as in Python."""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from galley.errors import RequestError
from galley.tools.conversation import Tool
from galley.tools.qwen_xml import FUNCTION_END, PARAMETER, PARAMETER_END
from galley.tools.value_types import referred, types_of

_AROUND: Final = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("title", "description", "$schema", "$id", "$comment", "examples"),
    )
)
"""Supported keywords of the schema of all arguments, if each argument is written separately."""

_OF_TEXT: Final = frozenset(
    ("type", "title", "description", "default", "examples", "example", "deprecated", "$comment")
)
"""Supported keywords of strings that are not written as JSON."""

_KEY: Final = re.compile(r"[^<>\s]+")


class Builder(Protocol):
    """The context in which these functions build a grammar."""

    terminals: dict[str, str]

    def literal(self, text: str) -> str:
        """Return a text in Lark's notation."""

    def schema(self, field: str, schema: dict[str, Any]) -> str:
        """Return the name of a rule for JSON that satisfies ``schema``."""

    def rule(self, name: str, body: str) -> str:
        """Add a rule and return its name: ``name`` with a number."""


def tag_arguments(builder: Builder, tool: Tool) -> str:
    """Return the grammar of arguments as Qwen3-Coder writes them.

    Raises:
        RequestError: the tool's schema cannot be expressed in this form.
    """
    required: list[str] = []
    optional: list[str] = []
    for key, schema, needed in _properties(tool):
        if not _KEY.fullmatch(key):
            raise _refused(tool, f"{key[:64]!r} cannot be a parameter's name")
        head = builder.literal(f"{PARAMETER}{key}>\n")
        end = builder.literal(f"\n{PARAMETER_END}\n")
        types = types_of(schema, tool.schema)
        if "string" in types and types <= {"string", "null"}:
            values = _texts(tool, schema)
            free = f"{_any_text(builder)} {builder.literal(chr(10))}"
            listed = f"({' | '.join(map(builder.literal, values or ()))}) {end}"
            rule = f"{head} {free if values is None else listed}"
        else:
            rule = f"{head} {builder.schema(tool.field, _alone(tool, schema))} {end}"
        (required if needed else optional).append(builder.rule("parameter", rule))
    return " ".join([*required, *(f"{rule}?" for rule in optional)])


def _texts(tool: Tool, schema: Any) -> list[str] | None:
    """Return the texts that a value may be, including null; None: any text.

    Raises:
        RequestError: the schema cannot be expressed as alternatives.
    """
    if not isinstance(schema, Mapping):
        return None
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            _only(tool, schema, {word})
            each = [_texts(tool, one) for one in schema[word]]
            return None if None in each else [text for texts in each if texts for text in texts]
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
        _only(tool, schema, {"allOf"})
        return _texts(tool, schema["allOf"][0])
    if "$ref" in schema:
        _only(tool, schema, {"$ref"})
        return _texts(tool, referred(schema["$ref"], tool.schema))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    _only(tool, schema, {"const", "enum"})
    if isinstance(listed, list):
        return ["null" if value is None else str(value) for value in listed]
    return ["null"] if schema.get("type") in ("null", ["null"]) else None


def _only(tool: Tool, schema: Mapping[str, Any], words: set[str]) -> None:
    word = next((word for word in schema if word not in _OF_TEXT | words), None)
    if word is not None:
        raise _refused(tool, f"{word!r} of a string is not supported")


def python_arguments(builder: Builder, tool: Tool) -> str:
    """Return the grammar of keyword arguments.

    Their values are JSON, which is Python except for three words.

    Raises:
        RequestError: the tool's schema cannot be expressed in this form.
    """
    required: list[str] = []
    optional: list[str] = []
    for key, schema, needed in _properties(tool):
        if not key.isidentifier():
            raise _refused(tool, f"{key[:64]!r} cannot be a keyword")
        value = builder.schema(tool.field, _alone(tool, schema))
        rule = builder.rule("argument", f"{builder.literal(key + '=')} {value}")
        (required if needed else optional).append(rule)
    if required:
        return ' ", " '.join(required) + "".join(f' (", " {rule})?' for rule in optional)
    rest = ""
    for rule in reversed(optional):
        # The arguments that follow: after a comma, or without one if this argument is absent.
        following = optional[optional.index(rule) + 1 :]
        first = f"{rule} " + "".join(f'(", " {other})? ' for other in following)
        rest = f"{first} | {rest}" if rest else first
    return f"({rest})?" if rest else ""


def _any_text(builder: Builder) -> str:
    """Add rules for text up to its end marker, without other texts that a parser would mistake for it."""
    ends = "|".join(re.escape(end).replace("/", "\\/") for end in (PARAMETER, FUNCTION_END))
    builder.terminals["VALUE"] = rf"/(.|\n)*/ & ~/(.|\n)*({ends})(.|\n)*/"
    end = builder.literal(f"\n{PARAMETER_END}")
    builder.terminals[f"value[suffix={end}]"] = "VALUE"
    return "value"


def _properties(tool: Tool) -> list[tuple[str, Any, bool]]:
    """Return each property's key, schema, and whether it is required."""
    root = tool.schema
    word = next((word for word in root if word not in _AROUND), None)
    if word is not None:
        raise _refused(tool, f"{word!r} at the top level is not supported")
    properties, required = root.get("properties", {}), root.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _refused(tool, "properties and required must be a mapping and a list")
    missing = next((key for key in required if key not in properties), None)
    if missing is not None:
        raise _refused(tool, f"{missing!r} is required, but missing in properties")
    return [(key, schema, key in required) for key, schema in properties.items()]


def _alone(tool: Tool, schema: Any) -> dict[str, Any]:
    """Return a parameter's schema with the definitions to which it may refer."""
    shared: dict[str, Any] = {
        key: tool.schema[key] for key in ("$defs", "definitions") if key in tool.schema
    }
    if schema is True:
        return shared
    if not isinstance(schema, Mapping):
        raise _refused(tool, "a property's schema must be a mapping")
    return {**schema, **shared}


def _refused(tool: Tool, why: str) -> RequestError:
    return RequestError(
        f"{tool.field}: {why} if this model's calls are forced or strict", param=tool.field
    )
