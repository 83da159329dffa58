"""What only ``make thorough`` runs: most random examples, and long variants of quick tests."""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest

VARIABLE: Final = "GALLEY_TEST_THOROUGH"
THOROUGH: Final = VARIABLE in os.environ

long = pytest.mark.skipif(not THOROUGH, reason="takes long: make thorough runs it")
"""Marks a test or a parameter for ``make thorough``; a quicker one tests the same first."""


def examples(whole: int) -> int:
    """Return how many of the ``whole`` number of random examples a test tries.

    Examples are drawn anew in every run, so that coverage accumulates over runs.
    """
    return whole if THOROUGH else max(5, whole * 3 // 10)


def unless(quick: bool, *values: Any) -> Any:
    """Return a parameter, or several that belong together, for ``make thorough`` only unless ``quick``."""
    return pytest.param(*values, marks=[] if quick else [long])


def each_pair(*axes: Sequence[Any]) -> list[Any]:
    """Return every combination of the axes' values as parameters.

    ``make test`` tries enough that every two values of different axes occur together; the rest is ``long``.
    """
    cases = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = set().union(*map(_pairs, cases))
    chosen: set[tuple[int, ...]] = set()
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(_pairs(case))))
        missing.difference_update(_pairs(best))
        chosen.add(best)
    return [
        unless(case in chosen, *(axis[at] for axis, at in zip(axes, case, strict=True)))
        for case in cases
    ]


def some_of(first: Sequence[Any], second: Sequence[Any], *, of: int) -> list[Any]:
    """Return every combination of two axes' values as parameters.

    ``make test`` tries one in ``of``, in diagonals, so that each value of either axis occurs; the rest is
    ``long``.
    """
    return [
        unless((i + j) % of == 0, a, b) for i, a in enumerate(first) for j, b in enumerate(second)
    ]


def _pairs(case: Iterable[int]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(case), 2))
