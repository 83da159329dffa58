"""Which columns of a buffer each rank holds."""

import itertools
from collections.abc import Iterable
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""Begin and end of consecutive columns."""

Division: TypeAlias = tuple[tuple[Range, ...], ...]
"""For each rank the columns that it holds, in ascending order; no range touches the next."""

_TILE: Final = 16
"""Outputs of a matrix that executors pack together; parts are whole tiles where there are enough."""


def evenly(width: int, ranks: int) -> Division | None:
    """Return columns divided among ranks, as evenly as whole tiles allow; None if there are too few."""
    if width < ranks:
        return None
    unit = _TILE if width >= _TILE * ranks else 1
    units = -(-width // unit)
    bounds = [min(width, units * r // ranks * unit) for r in range(ranks + 1)]
    return tuple(((begin, end),) for begin, end in itertools.pairwise(bounds))


def everywhere(width: int, ranks: int) -> Division:
    """Return the division in which each rank holds all columns."""
    return (((0, width),),) * ranks


def is_everywhere(division: Division, width: int) -> bool:
    """Return whether each rank holds all columns."""
    return division == everywhere(width, len(division))


def scaled(division: Division, unit: int, other: int) -> Division | None:
    """Return the same units, of ``other`` columns each; None if a range cuts a unit of ``unit`` columns."""
    if any(bound % unit for ranges in division for one in ranges for bound in one):
        return None
    return tuple(
        tuple((begin // unit * other, end // unit * other) for begin, end in ranges)
        for ranges in division
    )


def joined(parts: Iterable[tuple[int, Division]]) -> Division:
    """Return the division of a buffer whose columns from each start on are divided in this way."""
    ordered = sorted(parts)
    ranks = len(ordered[0][1])
    return tuple(
        _merged(
            (start + begin, start + end)
            for start, division in ordered
            for begin, end in division[rank]
        )
        for rank in range(ranks)
    )


def within(division: Division, start: int, width: int) -> Division:
    """Return how the ``width`` columns from ``start`` on are divided, counted from ``start``."""
    return tuple(
        tuple(
            (max(begin, start) - start, min(end, start + width) - start)
            for begin, end in ranges
            if begin < start + width and end > start
        )
        for ranges in division
    )


def held_before(ranges: Iterable[Range], column: int) -> int:
    """Return how many of a rank's columns come before a column of the whole buffer."""
    return sum(max(0, min(end, column) - begin) for begin, end in ranges)


def count(ranges: Iterable[Range]) -> int:
    """Return the number of a rank's columns."""
    return sum(end - begin for begin, end in ranges)


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return tuple(merged)
