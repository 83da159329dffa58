"""The parts of JSON Schema that are honored, by name. An unsupported constraint is an error: it is never
ignored.

llguidance refuses keywords that it knows and does not implement, but ignores those that it does not know.
Therefore a schema is checked first. By the standard, a keyword that no draft defines does not constrain
values; a keyword that is a constraint elsewhere, or looks like a misspelled constraint, is refused all the
same.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

from galley.errors import RequestError, shown
from galley.grammar.numbers import fault_of_numbers
from galley.grammar.string_formats import ANY_TEXT, PATTERNS, REPLACED

MAX_SCHEMAS: Final = 10_000
"""Maximum number of subschemas of one schema."""

MAX_PATTERN_LENGTH: Final = 8192
"""Maximum value of a text's minimum or maximum length when combined with a pattern."""

_IN_MAPS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_IN_LISTS: Final = frozenset(("anyOf", "allOf", "oneOf", "prefixItems"))
_DIRECT: Final = frozenset(("items", "additionalProperties"))
_COUNTS: Final = (
    "minProperties",
    "maxProperties",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
)
_ASSERTIONS: Final = frozenset(
    (
        "$ref",
        "type",
        "const",
        "enum",
        "required",
        *_COUNTS,
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    )
)
_ANNOTATIONS: Final = frozenset(
    (
        "$schema",
        "$id",
        "id",  # from draft 4
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",  # OpenAPI's hint that accompanies oneOf, written by pydantic
    )
)
_KNOWN: Final = _IN_MAPS | _IN_LISTS | _DIRECT | _ASSERTIONS | _ANNOTATIONS

_NOT_HONORED: Final = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("additionalItems", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef"),
        # from draft 3, from OpenAPI, and from validators' extensions
        *("disallow", "divisibleBy", "extends", "requires", "nullable", "optional", "unique"),
        *(
            "maxlen",
            "minlen",
            "length",
            "size",
            "min",
            "max",
            "range",
            "regex",
            "regexp",
            "instanceof",
            "typeof",
        ),
        *("formatMinimum", "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum"),
        *("patternRequired", "uniqueItemProperties", "allRequired", "anyRequired", "oneRequired"),
        *("prohibited", "deepProperties", "deepRequired", "switch", "select", "x-guidance"),
    )
)
"""Keywords with which some validator rejects values."""

_CONSTRAINTS: Final = {
    name.lower().strip("$"): name
    for name in sorted(_NOT_HONORED | _IN_MAPS | _IN_LISTS | _DIRECT | _ASSERTIONS)
}
_PREFIXES: Final = ("x-", "_", "@")
"""Beginnings of names that are not JSON Schema's: of extensions, of keywords that were switched off, of
JSON-LD's."""

_LEAST_SIMILARITY: Final = 0.86
"""Minimum ``difflib`` ratio of a keyword and a misspelling: `item` is one, `note` and `tsType` are not."""


def parse_schema(
    source: str, field: str, *, written: Callable[[float], str] = str
) -> dict[str, Any]:
    """Parse a schema from JSON text and check that all its keywords are honored.

    Args:
        source: the text, short enough to be parsed.
        field: name of the field, for errors.
        written: see :func:`galley.grammar.numbers.fault_of_numbers`, which may change bounds.

    Raises:
        RequestError: it is no JSON object, or a keyword is not honored; names ``field`` and the keyword.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field}: the schema is not JSON: {error}", param=field) from None
    if not isinstance(schema, dict):
        raise RequestError(f"{field}: a schema is a JSON object", param=field)
    referring = _parts_with_references(schema)
    for count, (place, part) in enumerate(_subschemas(schema)):
        if count >= MAX_SCHEMAS:
            raise RequestError(
                f"{field}: the schema has more than {MAX_SCHEMAS} subschemas", param=field
            )
        if isinstance(part, dict):
            has_base = not place or id(part) in referring
            _rewrite_earlier_drafts(part, has_base=has_base)
        reason = _fault(part, place, schema)
        if reason is None and isinstance(part, dict):
            reason = fault_of_numbers(part, written)
        if reason is not None:
            raise RequestError(f"{field}: {reason} (at {place or '/'})", param=field)
        if isinstance(part, dict):
            for keyword in part.keys() - _KNOWN:  # llguidance would refuse some of them
                del part[keyword]
    return schema


def _rewrite_earlier_drafts(part: dict[str, Any], *, has_base: bool) -> None:
    """Change what earlier drafts wrote otherwise, where its meaning is the same in all of them.

    An array of ``items`` is today's ``prefixItems``, and ``additionalItems`` is about the items after
    it, else about nothing. The ``id`` of a part is a base of relative references: without any,
    nothing. A count may be written as 2.0.

    Args:
        part: the subschema; changed in place.
        has_base: whether an ``id`` of it has a meaning.
    """
    for keyword in _COUNTS:
        if isinstance(count := part.get(keyword), float) and count.is_integer():
            part[keyword] = int(count)
    if isinstance(part.get("items"), list) and "prefixItems" not in part:
        part["prefixItems"] = part.pop("items")
        if "additionalItems" in part:
            part["items"] = part.pop("additionalItems")
    elif "prefixItems" not in part:
        part.pop("additionalItems", None)
    for keyword in ("$id", "id"):
        if not has_base and isinstance(part.get(keyword), str):
            del part[keyword]


def _parts_with_references(schema: dict[str, Any]) -> set[int]:
    """Return the ``id()`` of all objects and arrays of a schema that ``$ref`` is a key within."""
    found: set[int] = set()
    parents: dict[int, Any] = {}
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        at = value if isinstance(value, dict) and "$ref" in value else None
        while at is not None and id(at) not in found:
            found.add(id(at))
            at = parents.get(id(at))
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                parents[id(inner)] = value
                pending.append(inner)
    return found


def narrow_formats(schema: dict[str, Any]) -> None:
    """Change the schema so that it allows exactly the valid texts of all its formats."""
    for _, part in list(_subschemas(schema)):
        name = part.get("format") if isinstance(part, dict) else None
        if not isinstance(name, str):
            continue
        if name in ANY_TEXT:
            del part["format"]
        elif name in PATTERNS:
            if name in REPLACED:
                del part["format"]
            part["allOf"] = [*part.get("allOf", []), *({"pattern": p} for p in PATTERNS[name])]


def patterns(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (keyword, place, regular expression) for each regular expression of a schema."""
    for place, part in _subschemas(schema):
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str):
                yield "pattern", place, part["pattern"]
            if isinstance(properties := part.get("patternProperties"), dict):
                for pattern in properties:
                    yield "patternProperties", place, pattern


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (JSON pointer, schema) for the schema and all below it, values in place of schemas included."""
    pending: list[tuple[str, Any]] = [("", schema)]
    while pending:
        place, part = pending.pop()
        yield place, part
        if not isinstance(part, dict):
            continue
        for keyword, value in part.items():
            below = f"{place}/{keyword}"
            if keyword in _IN_MAPS and isinstance(value, dict):
                pending += [(f"{below}/{name[:64]}", inner) for name, inner in value.items()]
            elif (keyword in _IN_LISTS or keyword == "items") and isinstance(value, list):
                pending += [(f"{below}/{index}", inner) for index, inner in enumerate(value)]
            elif keyword in _DIRECT:
                pending.append((below, value))


def _fault(part: Any, place: str, root: dict[str, Any]) -> str | None:
    """Return the reason why a subschema cannot be honored; None if it can."""
    if isinstance(part, bool):
        return None
    if not isinstance(part, dict):
        return f"a schema is an object or a boolean, got {shown(part)}"
    for keyword, value in part.items():
        if keyword not in _KNOWN and (reason := _not_an_annotation(keyword, value)):
            return reason
        if keyword in _IN_MAPS and not isinstance(value, dict):
            return f"{keyword!r} is an object, got {shown(value)}"
        if keyword in _IN_LISTS and not isinstance(value, list):
            return f"{keyword!r} is an array, got {shown(value)}"
        if keyword in ("maxLength", "minLength") and "pattern" in part and _is_longer(value):
            return (
                f"{keyword!r} {shown(value)} is not supported together with 'pattern'; the maximum is "
                f"{MAX_PATTERN_LENGTH}"
            )
        if keyword == "enum" and value == []:
            return "'enum' is empty, so no value can match"
        if keyword == "items" and isinstance(value, list):
            return "'items' with an array is not supported together with 'prefixItems'"
        if keyword in ("$id", "id") and place:
            return (
                f"{keyword!r} of a part is supported only if no '$ref' is within the part"
                if isinstance(value, str)
                else f"{keyword!r} must be a string, got {shown(value)}"
            )
        if keyword == "$ref" and not _is_found(value, root):
            return (
                f"'$ref' must point into the schema itself, got {shown(value)}; remote schemas are "
                "not fetched"
            )
    return None


def _is_longer(length: Any) -> bool:
    return isinstance(length, int | float) and length > MAX_PATTERN_LENGTH


def _not_an_annotation(keyword: str, value: Any) -> str | None:
    """Return why an unknown keyword cannot be an annotation, which by the standard constrains nothing."""
    if keyword in _NOT_HONORED:
        no_effect = keyword in ("uniqueItems", "nullable", "optional") and value is False
        return None if no_effect else f"the keyword {shown(keyword)} is not supported"
    if keyword.startswith(_PREFIXES):
        return None
    plain = re.sub(r"[\W_]", "", keyword[:64].lower())
    alike = difflib.get_close_matches(plain, _CONSTRAINTS, n=1, cutoff=_LEAST_SIMILARITY)
    if alike:
        return f"the keyword {shown(keyword)} is not supported; did you mean {_CONSTRAINTS[alike[0]]!r}?"
    return None


def _is_found(reference: Any, root: dict[str, Any]) -> bool:
    """Return whether a reference is a JSON pointer (RFC 6901) into ``root``."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    part: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return False
    return reference in ("#", "") or reference.startswith("#/")
