"""Histograms that cost a fraction of a microsecond an observation, so that each token may be one."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds for what a request takes."""

TOKEN_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5),
)
"""Bounds for what a token takes."""

COUNTS: Final = tuple(2**power for power in range(15))
"""Bounds for sequences and tokens of a step."""

FACTORS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 5)
"""Bounds for seconds of work in a second of audio."""


class Tally:
    """One histogram. Not thread-safe, unlike :class:`prometheus_client.Histogram`, which takes a lock."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: upper ends of the buckets, ascending; one more takes the rest."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value, in the unit of the bounds."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """Of all values."""
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """(upper end as Prometheus writes it, values up to it), as of now."""
        ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(ends, map(float, accumulate(self._counts)), strict=True))


class TallyFamily(Collector):
    """Tallies of one metric, by the values of its labels."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, labels, bounds
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def labels(self, *values: str) -> Tally:
        """The tally with these values of the labels."""
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
