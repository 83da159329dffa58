"""How long a batch waits for another request: never longer than pays.

A batch of n rows takes a fixed time and a time for each row. A request that joins the batch saves the fixed
time, since it needs no batch of its own, and the n requests that are there wait for its arrival. So the
batch waits while (n + 1) * (time until the next arrival) < (fixed time of a batch). Both are measured: the
fixed time by a line through the latest batches, the time between arrivals by a moving geometric mean, since
gaps within a burst and between bursts differ by orders of magnitude. A gap of :data:`_BURST_GAPS` times
that mean ends the wait: the burst is over. An engine that is idle most of the time therefore never waits,
and neither does one whose batches take no fixed time.

No clock is read here: every method is passed the time, in seconds.
"""

from math import exp, log
from typing import Final

_KEPT: Final = 0.98
"""Weight of all earlier batches compared with the next one: the latest 50 count most."""

_GAP_PART: Final = 0.125
"""Weight of the latest gap in the mean of gaps between arrivals."""

_BURST_GAPS: Final = 5.0
"""Silence, in typical gaps, after which no further request of a burst is expected."""

_LEAST_GAP: Final = 1e-6
"""Seconds below which gaps are not distinguished."""


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
    """The typical time between requests: the geometric mean of the latest gaps."""

    def __init__(self) -> None:
        self._latest: float | None = None
        self._mean_log: float | None = None

    def arrived(self, now: float) -> None:
        """Record a request."""
        if self._latest is not None:
            gap = log(max(_LEAST_GAP, now - self._latest))
            mean = gap if self._mean_log is None else self._mean_log
            self._mean_log = mean + (gap - mean) * _GAP_PART
        self._latest = now

    @property
    def gap(self) -> float:
        """The typical seconds between two arrivals; infinite before there were two."""
        return float("inf") if self._mean_log is None else exp(self._mean_log)

    def silence(self, now: float) -> float:
        """Return the seconds since the latest arrival."""
        return 0.0 if self._latest is None else now - self._latest


def wait_seconds(waiting: int, costs: BatchCosts, arrivals: Arrivals, now: float) -> float:
    """Return how long ``waiting`` requests should wait for another one; 0: not at all."""
    worth, gap = costs.fixed / (waiting + 1), arrivals.gap
    if gap >= worth:
        return 0.0
    return max(0.0, min(worth, _BURST_GAPS * gap) - arrivals.silence(now))
