"""What the suite leaves to ``make thorough``: most random examples, long variants of quick proofs."""

import os
from typing import Final

import pytest

VARIABLE: Final = "GALLEY_TEST_THOROUGH"
THOROUGH: Final = VARIABLE in os.environ

long = pytest.mark.skipif(not THOROUGH, reason="takes long: make thorough runs it")
"""Marks a test, or a parameter, whose proof a quicker one gives first."""


def examples(whole: int) -> int:
    """How many random examples a test tries, of the ``whole`` number.

    Examples are drawn anew in every run, so that runs add up.
    """
    return whole if THOROUGH else max(10, whole * 3 // 10)
