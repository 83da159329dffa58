"""Goals on quantiles of latencies, such as ``ttft p95 < 500ms, tpot p95 < 60ms``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from galley.bench.serve.objective import NAMES, UNITS
from galley.bench.serve.samples import Sample
from galley.errors import SettingsError

_LIMIT: Final = re.compile(r"(\w+)\s+p(\d+(?:\.\d+)?)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A quantile of a latency must not exceed this many seconds.

    Attributes:
        metric: "ttft", "tpot" or "latency".
        quantile: in percent, such as 95.
        seconds: the most.
    """

    metric: str
    quantile: float
    seconds: float

    @property
    def name(self) -> str:
        """Such as "ttft p95"."""
        return f"{self.metric} p{self.quantile:g}"

    def __str__(self) -> str:
        """Return the text that :func:`parse_goal` reads."""
        return f"{self.name} < {1e3 * self.seconds:g}ms"

    def of(self, samples: Sequence[Sample]) -> float:
        """Return the quantile in seconds; infinite if no request has the metric.

        The time of a failed request counts as infinite.
        """
        values = [getattr(sample, self.metric) for sample in samples if not sample.error]
        known = [value for value in values if value is not None]
        failed = len(samples) - len(values)
        if not known:
            return float("inf")
        if failed:
            known += [float("inf")] * failed
        # Without interpolation: between a time and infinity there is no time.
        return float(np.percentile(known, self.quantile, method="inverted_cdf"))


def parse_goal(text: str) -> list[Limit]:
    """Parse limits that are divided by commas.

    Raises:
        SettingsError: there is none, or one is of another form, or given twice.
    """
    limits: list[Limit] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _LIMIT.fullmatch(part)
        if match is None or match[1] not in NAMES or not 0 < float(match[2]) < 100:
            raise SettingsError(
                f"--slo: {part!r} is not a limit of a quantile of {', '.join(NAMES)}, such as "
                "'ttft p95 < 500ms'"
            )
        limit = Limit(match[1], float(match[2]), float(match[3]) * UNITS[match[4]])
        if limit.seconds <= 0 or any(limit.name == other.name for other in limits):
            raise SettingsError(f"--slo: {part!r} is 0 or given twice")
        limits.append(limit)
    if not limits:
        raise SettingsError("--slo: give at least one limit, such as 'ttft p95 < 500ms'")
    return limits
