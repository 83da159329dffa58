"""Query parameters and forms, whose values are texts, as the values of structs."""

from collections.abc import Set
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from galley.errors import RequestError
from galley.protocols.common.validate import validate

Query = TypeVar("Query", bound=msgspec.Struct)


def read_query(request: Request, model: type[Query]) -> Query:
    """Return the query parameters as ``model``.

    Raises:
        RequestError: ``model`` rejects a parameter; ``param`` names it.
    """
    return validate(model, values_of(request.query_params, model), text=True)


def values_of(texts: ImmutableMultiDict[str, Any], model: type[msgspec.Struct]) -> dict[str, Any]:
    """Return field name -> its text, a list of texts, or an object's fields, as ``model`` has them.

    A list may be sent as ``name[]`` and several times, an object as ``name[field]`` or as JSON.

    Raises:
        RequestError: a value is not text, or a field is given in two forms.
    """
    fields = _fields_of(model)
    values: dict[str, Any] = {}
    in_parts: set[str] = set()
    for key in texts:
        name, inner = _split(key)
        given = texts.getlist(key)
        if any(not isinstance(value, str) for value in given):
            raise RequestError(f"{name[:64]}: expected text, got a file", param=name[:64])
        if name in values and not (inner and name in in_parts):
            raise RequestError(f"{name[:64]}: given in more than one form", param=name[:64])
        if inner:
            if len(given) > 1:
                raise RequestError(f"{key[:64]}: given more than once", param=name[:64])
            in_parts.add(name)
            values.setdefault(name, {})[inner] = given[0]
        elif inner == "" or len(given) > 1 or name in fields.lists:
            values[name] = list(given)
        else:
            [text] = given
            values[name] = _object(str(text)) if name in fields.objects else text
    return values


class _Fields(NamedTuple):
    """Names of fields that are lists or may be objects."""

    lists: Set[str]
    objects: Set[str]


@cache  # inspecting a form takes milliseconds
def _fields_of(model: type[msgspec.Struct]) -> _Fields:
    """Return the fields of ``model``; lists are those with a tuple as their default."""
    info = msgspec.inspect.type_info(model)
    assert isinstance(info, msgspec.inspect.StructType)
    return _Fields(
        {field.name for field in info.fields if isinstance(field.default, tuple)},
        {field.name for field in info.fields if _may_be_object(field.type)},
    )


def _may_be_object(kind: msgspec.inspect.Type) -> bool:
    match kind:
        case msgspec.inspect.Metadata():
            return _may_be_object(kind.type)
        case msgspec.inspect.UnionType():
            return any(map(_may_be_object, kind.types))
        case _:
            return isinstance(kind, msgspec.inspect.StructType)


def _split(key: str) -> tuple[str, str | None]:
    """Split ``name[field]`` into its parts; ``name[]`` has an empty field, and ``name`` has none."""
    name, bracket, inner = key.partition("[")
    if not bracket or not inner.endswith("]"):
        return key, None
    return name, inner[:-1]


def _object(text: str) -> Any:
    """Return the JSON object that a text is, or the text itself."""
    if not text.startswith("{"):
        return text
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=dict[str, Any])
    return text
