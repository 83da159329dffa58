"""What the suite leaves to ``make thorough``: most random examples, long variants of quick proofs."""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest

VARIABLE: Final = "GALLEY_TEST_THOROUGH"
THOROUGH: Final = VARIABLE in os.environ

long = pytest.mark.skipif(not THOROUGH, reason="takes long: make thorough runs it")
"""Marks a test, or a parameter, whose proof a quicker one gives first."""


def examples(whole: int) -> int:
    """How many random examples a test tries, of the ``whole`` number.

    Examples are drawn anew in every run, so that runs add up.
    """
    return whole if THOROUGH else max(5, whole * 3 // 10)


def unless(quick: bool, *values: Any) -> Any:
    """A parameter, or several that belong together, that ``make thorough`` alone tries unless ``quick``."""
    return pytest.param(*values, marks=[] if quick else [long])


def each_pair(*axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes' values as parameters.

    ``make test`` tries enough that every two values of different axes meet; the others are ``long``.
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


def _pairs(case: Iterable[int]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(case), 2))
