"""Conversion of request values to structs, with errors that name the offending field."""

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from galley.errors import RequestError

Model = TypeVar("Model")
Path = tuple[str | int, ...]

_AT: Final = re.compile(r" - at `\$((?:\.\w+|\[\d+\]|\[\.\.\.\])*)`\Z")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")
_FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_MISMATCH: Final = re.compile(r"Expected `(.+)`, got `(\w+)`")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (<=|>=) (\d+)")
_BOUND: Final = re.compile(r"Expected `\w+` (<=|>=) (\S+)")

_UNITS: Final = {"array": "items", "object": "entries", "str": "characters"}
_NAMES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""msgspec's names of JSON types, which are Python's -> JSON's names."""


def validate(model: type[Model], value: dict[str, Any], *, text: bool = False) -> Model:
    """Convert ``value`` to ``model``.

    Args:
        text: whether numbers and booleans are written as text, as in a form.

    Raises:
        RequestError: ``model`` rejects a field; ``param`` names the first such field.
    """
    try:
        return msgspec.convert(value, model, strict=not text)
    except msgspec.ValidationError as error:
        raise _request_error(model, value, error) from None


def _request_error(model: type, value: Any, error: msgspec.ValidationError) -> RequestError:
    message, path = str(error), Path()
    field = _FIELD.fullmatch(message)
    # A field's name, chosen by the client, can look like a path.
    if not (field and field[2] in value) and (at := _AT.search(message)):
        message = message[: at.start()]
        path = _path(value, at[1], message)
    if isinstance(error.__cause__, RequestError):  # raised by the struct's own __post_init__
        inner = error.__cause__
        return RequestError(
            str(inner), param=_dotted([*path, *filter(None, [inner.param])]), code=inner.code
        )
    if field := _FIELD.fullmatch(message):
        param = _dotted((*path, field[2]))
        kind = "Unsupported" if field[1] == "contains unknown" else "Missing"
        return RequestError(f"{kind} field {_shown(param)}", param=param)
    param = _dotted(path)
    return RequestError(f"{param}: {_explained(message, model, path)}", param=param)


def _path(value: Any, steps: str, message: str) -> Path:
    """Return where msgspec found the error.

    ``[...]`` stands for some value of a mapping: the first value of the wrong type is meant.
    """
    path: list[str | int] = []
    for name, index, _ in _STEP.findall(steps):
        if name or index:
            path.append(name or int(index))
        elif (mismatch := _MISMATCH.fullmatch(message)) is None:
            break
        else:
            items = _at(value, path)
            wrong = (key for key, item in items.items() if _kind(item) == mismatch[2])
            path.append(str(next(wrong, "")))
            break
    return tuple(path)


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return type(value).__name__


def _explained(message: str, model: type, path: Path) -> str:
    if mismatch := _MISMATCH.fullmatch(message):
        wanted = [name for name in mismatch[1].split(" | ") if name != "null"]
        if not wanted:
            return "only null is supported"
        names = " or ".join(_NAMES.get(name, name) for name in wanted)
        return f"expected {names}, got {_NAMES.get(mismatch[2], mismatch[2])}"
    if length := _LENGTH.fullmatch(message):
        unit, count = _UNITS.get(length[1], "items"), length[3]
        if length[2] == "<=":
            return f"must have at most {count} {unit}"
        return f"must have at least {count} {unit if count != '1' else unit[:-1]}"
    if bound := _BOUND.fullmatch(message):
        return f"must be {'at most' if bound[1] == '<=' else 'at least'} {bound[2]}"
    if message.startswith("Invalid enum value"):
        choices = _choices(model, path)
        if choices and isinstance(choices[0], bool):
            return f"only {str(choices[0]).lower()} is supported"
        got = _shown(message.removeprefix("Invalid enum value ").strip("'"))
        return f"{got} is not one of {', '.join(map(repr, choices))}"
    return message[:1].lower() + message[1:]


def _choices(model: type, path: Path) -> tuple[Any, ...]:
    """Return the values that the Literal at ``path`` allows, each once: several types may have it."""
    kinds: list[msgspec.inspect.Type] = [msgspec.inspect.type_info(model)]
    for step in path:
        kinds = [inner for kind in _members(kinds) for inner in _inside(kind, step)]
    literals = [kind for kind in _members(kinds) if isinstance(kind, msgspec.inspect.LiteralType)]
    return tuple(dict.fromkeys(value for literal in literals for value in literal.values))


def _members(kinds: Sequence[msgspec.inspect.Type]) -> list[msgspec.inspect.Type]:
    """Return the types, with each union replaced by its members."""
    members: list[msgspec.inspect.Type] = []
    for kind in kinds:
        while isinstance(kind, msgspec.inspect.Metadata):
            kind = kind.type
        if isinstance(kind, msgspec.inspect.UnionType):
            members += _members(kind.types)
        else:
            members.append(kind)
    return members


def _inside(kind: msgspec.inspect.Type, step: str | int) -> list[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.StructType():
            return [field.type for field in kind.fields if field.encode_name == step]
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [kind.item_type]
        case _:
            return []


def _dotted(path: Sequence[str | int]) -> str:
    """Write a path as OpenAI does, like ``messages[0].content``, cut to 200 characters."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")[:200]


def _shown(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:64] + "...")
