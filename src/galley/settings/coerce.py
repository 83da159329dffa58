"""Conversion of values from YAML, text or variables to the types of the settings."""

import types as pytypes
import typing
from typing import Literal


def coerce(kind: object, value: object) -> object:
    """Convert ``value``, from YAML or text, to ``kind``: a type, Literal, tuple of strings or optional.

    Raises:
        ValueError: the value cannot be converted.
    """
    origin = typing.get_origin(kind)
    if origin is Literal:
        if value is False and "off" in typing.get_args(kind):
            return "off"  # YAML 1.1 reads an unquoted off as false
        if value not in typing.get_args(kind):
            raise ValueError(f"{value!r} is not one of {', '.join(typing.get_args(kind))}")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError("expected a list of strings")
        return tuple(item.strip() for item in items)
    if origin in (pytypes.UnionType, typing.Union):
        inner = next(k for k in typing.get_args(kind) if k is not type(None))
        return None if value is None or value == "" else coerce(inner, value)
    if kind is bool:
        return _to_bool(value)
    if kind is str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {value!r}; quote it")
        return value
    return _to_number(int if kind is int else float, value)


def _to_number(kind: type[int] | type[float], value: object) -> int | float:
    accepted = isinstance(value, str | int) or (isinstance(value, float) and kind is float)
    if accepted and not isinstance(value, bool):
        try:
            return kind(typing.cast(str | int | float, value))
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"expected a {'whole ' if kind is int else ''}number, got {value!r}")


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if str(value).lower() not in words:
        raise ValueError(f"expected true or false, got {value!r}")
    return words[str(value).lower()]
