"""Types of settings: how values are read from YAML, text or variables, and which range they have."""

import re
import sys
import typing
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from galley.errors import SettingsError

_LARGEST: Final = sys.float_info.max
"""As an upper bound: any number but infinity."""

LAST_PORT: Final = 65_535

Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=LAST_PORT)]
Seconds = Annotated[float, Meta(gt=0, le=_LARGEST)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=_LARGEST)]
Amount = SecondsOrZero

_ADDRESS: Final = re.compile(r"(\[[\da-fA-F:.]+\]|[\w.-]+):(\d{1,5})", re.ASCII)

_WORDS: Final = {"yes": True, "on": True, "no": False, "off": False}
"""Words of YAML 1.1, which msgspec does not know."""


def parsed_address(address: str, setting: str = "replica") -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``. Raises SettingsError if it has another form."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) <= LAST_PORT:
        raise SettingsError(f"{setting}: {address!r} is not HOST:PORT, such as 10.0.0.7:8500")
    return match[1].strip("[]"), int(match[2])


def address_text(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with brackets around an IPv6 address, as :func:`parsed_address` takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(kind: Any, value: object) -> object:
    """Convert ``value``, from YAML or text, to ``kind``: a type, Literal, tuple of strings or optional.

    Raises:
        ValueError: the value cannot be converted.
    """
    kind, optional = _without_none(kind)
    if optional and value in (None, ""):
        return None
    if isinstance(value, str) and kind is not str:
        value = value.strip()
        if typing.get_origin(kind) is tuple:
            return tuple(item.strip() for item in value.split(","))
        if kind is bool:
            value = _WORDS.get(value.lower(), value)
    if value is False and "off" in typing.get_args(kind):
        return "off"  # YAML 1.1 reads an unquoted off as false
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        raise ValueError(_mismatch(kind, value)) from None


def fault(kind: Any, value: object) -> str | None:
    """Return what is wrong with the value of a setting, to follow its name; None if nothing is.

    Args:
        kind: the declared type, with its range. Only numbers and choices are checked.
        value: the setting's value.
    """
    inner, _ = _without_none(kind)
    base = typing.get_args(inner)[0] if typing.get_origin(inner) is Annotated else inner
    if base not in (int, float) and typing.get_origin(base) is not Literal:
        return None
    number = type(value) is int or (type(value) is float and base is float)
    if base is int and value is not None and not number:
        return ": " + _mismatch(base, value)  # msgspec would accept 2.0
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if base is inner or not number:
            return ": " + _mismatch(base, value)
        [meta] = inner.__metadata__
        return f" must be {_range(meta)}, got {value}"
    return None


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return the type of values other than None, and whether None is one."""
    kinds = typing.get_args(kind)
    if type(None) not in kinds:
        return kind, False
    return next(k for k in kinds if k is not type(None)), True


def _mismatch(kind: Any, value: object) -> str:
    if typing.get_origin(kind) is Literal:
        return f"{value!r} is not one of {', '.join(typing.get_args(kind))}"
    if typing.get_origin(kind) is tuple:
        return "expected a list of strings"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return f"expected {names[kind]}, got {value!r}" + ("; quote it" if kind is str else "")


def _range(meta: Meta) -> str:
    if meta.le == _LARGEST:
        lower = f"above {meta.gt:g}" if meta.ge is None else f"of at least {meta.ge:g}"
        return f"a finite number {lower}"
    limits = {
        "a multiple of": meta.multiple_of,
        "at least": meta.ge,
        "above": meta.gt,
        "at most": meta.le,
    }
    return " and ".join(f"{name} {n:.15g}" for name, n in limits.items() if n is not None)
