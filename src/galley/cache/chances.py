"""Statistics of shares: the binomial distribution, and intervals."""

import math
from typing import Final

_Z: Final = 1.959964
"""Normal deviate of intervals of 95 %."""


def at_least(count: int, of: int, share: float) -> float:
    """Return the probability of this many or more in a binomial distribution.

    Args:
        count: the least number of successes.
        of: the number of trials.
        share: the probability of a success, in (0, 1).
    """
    fewer = sum(
        math.exp(
            math.lgamma(of + 1)
            - math.lgamma(k + 1)
            - math.lgamma(of - k + 1)
            + k * math.log(share)
            + (of - k) * math.log1p(-share)
        )
        for k in range(count)
    )
    return max(0.0, 1.0 - fewer)


def interval(count: int, of: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share (JASA 22, 1927)."""
    if not of:
        return 0.0, 1.0
    share, z2 = count / of, _Z * _Z
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(0.0, middle - half), min(1.0, middle + half)
