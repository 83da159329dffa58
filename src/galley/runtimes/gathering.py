"""How long a batch waits for another request: never longer than pays.

A batch of n rows takes a fixed time and a time for each row. A request that joins the batch saves the fixed
time, since it needs no batch of its own, and the n requests that are there wait for its arrival. So the
batch waits while (n + 1) * (time until the next arrival) < (fixed time of a batch). Both are measured: the
fixed time by a line through the latest batches, the time between arrivals by a moving mean. An engine that
is idle most of the time therefore never waits, and neither does one whose batches take no fixed time.

No clock is read here: every method is passed the time, in seconds.
"""

from typing import Final

_KEPT: Final = 0.98
"""Weight of all earlier batches compared with the next one: the latest 50 count most."""

_GAP_PART: Final = 0.125
"""Weight of the latest gap in the mean of gaps between arrivals."""


class BatchCosts:
    """The seconds of a batch by its rows: the line of least squares through the latest batches."""

    def __init__(self) -> None:
        self._count = self._rows = self._seconds = self._squares = self._products = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Record a batch."""
        self._count = self._count * _KEPT + 1
        self._rows = self._rows * _KEPT + rows
        self._seconds = self._seconds * _KEPT + seconds
        self._squares = self._squares * _KEPT + rows * rows
        self._products = self._products * _KEPT + rows * seconds

    @property
    def fixed(self) -> float:
        """Seconds that do not depend on the rows; 0 before batches of two sizes were measured."""
        spread = self._count * self._squares - self._rows * self._rows
        if spread <= 1e-9 * self._squares * self._count:
            return 0.0
        slope = (self._count * self._products - self._rows * self._seconds) / spread
        return max(0.0, (self._seconds - max(0.0, slope) * self._rows) / self._count)


class Arrivals:
    """The mean time between requests."""

    def __init__(self) -> None:
        self._latest: float | None = None
        self._mean: float | None = None

    def arrived(self, now: float) -> None:
        """Record a request."""
        if self._latest is not None:
            gap = now - self._latest
            self._mean = gap if self._mean is None else self._mean + (gap - self._mean) * _GAP_PART
        self._latest = now

    def gap(self, now: float) -> float:
        """Return the expected seconds between two arrivals: at least those without any so far."""
        if self._mean is None or self._latest is None:
            return float("inf")
        return max(self._mean, now - self._latest)

    def silence(self, now: float) -> float:
        """Return the seconds since the latest arrival."""
        return 0.0 if self._latest is None else now - self._latest


def wait_seconds(waiting: int, costs: BatchCosts, arrivals: Arrivals, now: float) -> float:
    """Return how long ``waiting`` requests should wait for another one; 0: not at all."""
    worth = costs.fixed / (waiting + 1)
    if arrivals.gap(now) >= worth:
        return 0.0
    return worth - arrivals.silence(now)
