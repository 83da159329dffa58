"""Conversion of values written without quotes between tags to the types of their schemas."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from galley.tools.json_call import NotACall
from galley.tools.json_text import JsonText
from galley.tools.pythonic import python_as_json

ALL: Final = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
_EITHER: Final = ("anyOf", "oneOf")
_MOST_SCHEMAS: Final = 256
"""Maximum number of schemas examined for a parameter's types; with more, any type is accepted."""

_LONGEST_LITERAL: Final = 64 * 1024
"""Maximum number of characters that are parsed as Python."""

_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a parameter's values may have; without a type in the schema, text.

    Args:
        schema: schema of the parameter.
        root: the schema of all arguments, to which it may refer.
    """
    found = _types(schema, root, iter(range(_MOST_SCHEMAS)))
    return frozenset(("string",)) if found is None else found


def _types(schema: Any, root: Mapping[str, Any], steps: Iterator[int]) -> frozenset[str] | None:
    """Return the types; None if the schema does not specify any.

    ``steps`` limits how many more schemas are examined.
    """
    if not isinstance(schema, Mapping):
        return None
    if next(steps, None) is None:
        return ALL

    def each(schemas: Any) -> list[frozenset[str]]:
        return [_types(one, root, steps) or ALL for one in schemas]

    types_of_parts = [
        frozenset[str]().union(*each(schema[w])) for w in _EITHER if _is_list(schema, w)
    ]
    if _is_list(schema, "allOf"):
        types_of_parts += each(schema["allOf"])
    if "$ref" in schema:
        types_of_parts += each([referred(schema["$ref"], root)])
    named = schema.get("type")
    if isinstance(named, str | list):
        types_of_parts.append(
            ALL.intersection([named] if isinstance(named, str) else map(str, named))
        )
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        types_of_parts.append(frozenset(map(_type_of, values)))
    if not types_of_parts and "properties" in schema:
        types_of_parts.append(frozenset(("object",)))
    if not types_of_parts and ("items" in schema or "prefixItems" in schema):
        types_of_parts.append(frozenset(("array",)))
    if not types_of_parts:
        return None
    # Every integer is a number.
    return ALL.intersection(*(t | {"integer"} if "number" in t else t for t in types_of_parts))


def _is_list(schema: Mapping[str, Any], word: str) -> bool:
    return isinstance(schema.get(word), list)


def referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """Resolve a reference within the document; return None if its target does not exist."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    at: Any = root
    for step in filter(None, reference[1:].split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def as_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON, of a type that fits text and schema, or else as it is written.

    Where a schema allows text and at most null besides, any value but null is text whatever it
    looks like; where it allows other types as well, text is what fits none of them, or is in
    quotes.
    """
    written = text.strip()
    canonical = _CONSTANTS.get(written, written)
    if canonical == "null" and "null" in types:
        return canonical
    if "string" in types and types <= {"string", "null"}:
        return json.dumps(text, ensure_ascii=False)
    if _is_json(canonical) and _type_of(json.loads(canonical)) in types:
        return canonical
    literal = _python(written)
    if literal is not None and _type_of(json.loads(literal)) in types:
        return literal
    if "string" not in types and _is_json(canonical):
        return canonical
    return json.dumps(text if "string" in types else written, ensure_ascii=False)


def _is_json(text: str) -> bool:
    value = JsonText()
    # The space ends a number.
    return bool(text) and all(map(value.take, text + " ")) and value.complete


def _python(text: str) -> str | None:
    try:
        return python_as_json(text) if len(text) <= _LONGEST_LITERAL else None
    except NotACall:
        return None


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case list():
            return "array"
    return "object"
