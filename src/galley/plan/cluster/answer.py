"""How many replicas a goal needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from galley.plan.cluster.simulate import Outcome

MOST_REPLICAS: Final = 1000
"""Most replicas that a plan considers."""


@dataclass(frozen=True, slots=True)
class Target:
    """Limits in seconds on a quantile of all requests; infinite where there is none.

    ``quantile`` is one of :data:`galley.plan.cluster.simulate.QUANTILES`.
    """

    ttft: float = float("inf")
    tpot: float = float("inf")
    quantile: str = "p95"

    @property
    def is_set(self) -> bool:
        """Whether there is a limit at all."""
        return min(self.ttft, self.tpot) < float("inf")

    def verdict(self, outcome: Outcome) -> str:
        """Return "met", the limit that is missed, or nothing if there is no limit."""
        return (self.missed(outcome) or "met") if self.is_set else ""

    def missed(self, outcome: Outcome) -> str | None:
        """Return the limit that is missed; None if the goal is met."""
        ttft, tpot = outcome.ttft_s[self.quantile], outcome.tpot_s[self.quantile]
        name = self.quantile.upper()
        if not outcome.requests:
            return "all requests are refused"
        if ttft > self.ttft:
            return f"{name} of TTFT {ttft:.2f} s is above {self.ttft:g} s"
        if tpot > self.tpot:
            return f"{name} of TPOT {1e3 * tpot:.1f} ms is above {1e3 * self.tpot:g} ms"
        return None


def fewest(
    outcome_of: Callable[[int], Outcome], target: Target, least: int, most: int = MOST_REPLICAS
) -> Outcome | None:
    """Return the outcome of the fewest replicas that meet the goal; None if ``most`` do not.

    More replicas are taken to be no worse: the count is doubled until the goal is met, and then halved in.

    Args:
        outcome_of: simulates this many replicas.
        target: the goal.
        least: no fewer are considered.
        most: no more are considered.
    """
    low, high = least, least
    found = outcome_of(high)
    while target.missed(found) is not None:
        if high == most:
            return None
        low, high = high + 1, min(2 * high, most)
        found = outcome_of(high)
    while low < high:
        middle = (low + high) // 2
        tried = outcome_of(middle)
        if target.missed(tried) is None:
            high, found = middle, tried
        else:
            low = middle + 1
    return found
