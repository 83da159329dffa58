"""Counters and histograms that cost a fraction of a microsecond, so that every token can be counted."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bucket bounds for request times, in seconds."""

TOKEN_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5),
)
"""Bucket bounds for token times, in seconds."""

COUNTS: Final = tuple(2**power for power in range(15))
"""Bucket bounds for the sequences and tokens of a step."""

FACTORS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 5)
"""Bucket bounds for seconds of work per second of audio."""


class Countable(Protocol):
    """A counter: a :class:`Sum`, or one of ``prometheus_client``."""

    def inc(self, amount: float = 1) -> None:
        """Add an amount, which is not negative."""


class Sum:
    """One counter. Not thread-safe, unlike :class:`prometheus_client.Counter`, which takes a lock.

    Attributes:
        value: the sum of all amounts.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        """Start at 0."""
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add an amount, which is not negative."""
        self.value += amount


class SumFamily(Collector):
    """The sums of one metric, by the values of its labels."""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._sums: dict[tuple[str, ...], Sum] = {}

    def labels(self, *values: str) -> Sum:
        """Return the sum with these label values, creating it if needed."""
        found = self._sums.get(values)
        if found is None:
            found = self._sums[values] = Sum()
        return found

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, one in self._sums.items():
            family.add_metric(values, one.value)
        yield family


class Tally:
    """One histogram. Not thread-safe, unlike :class:`prometheus_client.Histogram`, which takes a lock."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram.

        Args:
            bounds: upper ends of the buckets, ascending; one more bucket holds larger values.
        """
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value, in the unit of the bounds."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """Return the current (upper end as Prometheus writes it, number of values up to it) pairs."""
        ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(ends, map(float, accumulate(self._counts)), strict=True))


class TallyFamily(Collector):
    """The tallies of one metric, by the values of its labels."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, labels, bounds
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def labels(self, *values: str) -> Tally:
        """Return the tally with these label values, creating it if needed."""
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = Tally(self._bounds)
        return tally

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, tally in self._tallies.items():
            family.add_metric(values, tally.buckets(), tally.sum)
        yield family
