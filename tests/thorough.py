"""What the suite leaves to ``make thorough``, which takes longer: two of five random examples, and more."""

import os
from typing import Final

VARIABLE: Final = "GALLEY_TEST_THOROUGH"
THOROUGH: Final = VARIABLE in os.environ


def examples(whole: int) -> int:
    """How many random examples a test tries, of the ``whole`` number."""
    return whole if THOROUGH else whole * 3 // 5
