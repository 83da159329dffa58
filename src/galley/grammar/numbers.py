"""Checks of numbers in a JSON schema that llguidance would alter: they are refused or rewritten.

llguidance reads numbers as float64, some of them off by a unit in the last place, and limits ranges of
integers to 64 bits. Some integers near that limit make it end the process.
"""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

from galley.errors import shown

MOST: Final = 2**63 - 1024
"""The largest 64-bit integer that is a float64: llguidance's ranges of integers end there."""

_EXACT: Final = 2**53
"""Up to here every integer is exactly representable as a float64."""

_PLAIN_DIGITS: Final = 15
"""Any number with at most this many digits is read exactly."""

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def fault_of_numbers(part: dict[str, Any], written: Callable[[float], str]) -> str | None:
    """Return why a number of a subschema cannot be kept; None if all can.

    Bounds of integers are changed so that they hold exactly, and clamped to :data:`MOST` where they exceed
    it: every text that satisfies the new bounds is valid.

    Args:
        part: the subschema; changed in place.
        written: returns a number as it is written in texts that satisfy ``{"const": number}``.
    """
    for keyword in ("const", "enum"):
        for number in _numbers(part.get(keyword)):
            if not _is_kept(number, written):
                return _not_kept(keyword, number)
    given = {name: part[name] for name in _BOUNDS if _is_number(part.get(name))}
    if not given:
        return None
    if _only_integers(part.get("type")):
        return _bound_integers(part, given)
    for keyword, number in given.items():
        if abs(number) > _EXACT or not _is_kept(number, written):
            return _not_kept(keyword, number)
    return None


def _bound_integers(part: dict[str, Any], given: dict[str, int | float]) -> str | None:
    """Change the bounds of a subschema of integers to exact inclusive ones."""
    bounds: dict[str, tuple[int, str]] = {}
    for keyword, number in given.items():
        if not math.isfinite(number):
            return _not_kept(keyword, number)
        lower = keyword in ("minimum", "exclusiveMinimum")
        bound = math.ceil(number) if lower else math.floor(number)
        if keyword.startswith("exclusive") and bound == number:
            bound += 1 if lower else -1
        name = "minimum" if lower else "maximum"
        tighter = max if lower else min
        bounds[name] = tighter(bounds.get(name, (bound, keyword)), (bound, keyword))
    for name, (bound, keyword) in bounds.items():
        outer = bound <= -MOST if name == "minimum" else bound >= MOST
        if not outer and (abs(bound) > MOST or int(float(bound)) != bound):
            return _not_kept(keyword, given[keyword])
    for keyword in given:
        del part[keyword]
    wide = any(abs(bound) > _EXACT for bound, _ in bounds.values())
    for name, edge in (("minimum", -MOST), ("maximum", MOST)):
        if name in bounds:
            part[name] = max(-MOST, min(MOST, bounds[name][0]))
        elif wide:  # a half-open range allows digits beyond 64 bits
            part[name] = edge
    return None


def _is_kept(number: float, written: Callable[[float], str]) -> bool:
    """Return whether texts contain a constant as it is written in the schema."""
    if isinstance(number, int):
        if abs(number) <= _EXACT:
            return True
        try:
            nearest = float(number)
        except OverflowError:
            return False
        if abs(number) < 2**63:
            return int(nearest) == number and abs(number) <= MOST
        return (
            Decimal(repr(nearest)) == number
        )  # written with the fewest digits that identify the float64
    if not math.isfinite(number):
        return False
    if float(f"{number:.{_PLAIN_DIGITS}g}") == number:
        return True
    try:
        return float(written(number)) == number
    except ValueError:
        return False


def _only_integers(kinds: Any) -> bool:
    names = kinds if isinstance(kinds, list) else [kinds]
    return "integer" in names and "number" not in names


def _numbers(value: Any) -> Iterator[int | float]:
    """Yield all numbers within a JSON value."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif _is_number(value):
            yield value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _not_kept(keyword: str, number: float) -> str:
    return (
        f"{keyword!r} {shown(number)} cannot be represented exactly: numbers are float64, including "
        f"integers above 2**53"
    )
