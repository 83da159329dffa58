"""Parsing of untrusted JSON objects: strict, bounded in depth, with errors that name the field.

It is stricter than most JSON parsers, because ambiguous input is either a bug or an attack:
duplicate keys, ``NaN`` and nesting deeper than :data:`MAX_DEPTH` are refused.
"""

import json
import re
from collections import Counter
from typing import Any, Final

from galley.errors import RequestError
from galley.text.tokenizer_library import replace_surrogates

MAX_DEPTH: Final = 64

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_KINDS: Final = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def parse_json(body: bytes, *, what: str = "The body") -> dict[str, Any]:
    """Parse a JSON object under this module's rules; lone surrogates become U+FFFD.

    Args:
        body: the text, in UTF-8.
        what: name of the text, with which an error's message begins.

    Raises:
        RequestError: the text is not a JSON object, or breaks a rule.
    """
    constants = _Constants()
    try:
        value: Any = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=constants.object,
            parse_constant=constants.add,
        )
    except RecursionError:
        raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{what} is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RequestError:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise RequestError(f"{what} contains a number with too many digits") from None
    if constants:
        raise RequestError(f"{constants[0]} is not JSON")
    if not isinstance(value, dict):
        raise RequestError(
            f'{what} must be a JSON object, like {{"model": "NAME"}}; got {_KINDS[type(value)]}'
        )
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value, what)
    if _ESCAPED_SURROGATE.search(body):
        # Tokenizers reject lone surrogates, which JSON's escapes allow.
        return {replace_surrogates(key): _whole(item) for key, item in value.items()}
    return value


class _Constants(list[str]):
    """The ``NaN`` and infinities of a text; this list replaces each of them in the value."""

    def add(self, name: str) -> "_Constants":
        """Record a constant and return its placeholder, this list."""
        self.append(name)
        return self

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Build an object of the text.

        Raises:
            RequestError: a value is a constant, whose key ``param`` names, or a key appears twice.
        """
        if self:
            for key, value in pairs:
                if value is self:
                    name = replace_surrogates(key[:64])
                    raise RequestError(f"{name}: {self[0]} is not JSON", param=name)
        return _unique(pairs)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        name = replace_surrogates(twice[:64])
        raise RequestError(f"The key {name!r} appears twice in one object", param=name)
    return value


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels")


def _whole(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {replace_surrogates(key): _whole(item) for key, item in value.items()}
        case _:
            return value
