"""Send times of an open loop, in seconds since its start, independent of how earlier requests went."""

import itertools
from collections.abc import Iterator

import numpy as np


def poisson(
    rate: float, *, seed: int, requests: int | None = None, seconds: float | None = None
) -> list[float]:
    """Return the times of a Poisson process, which models many independent users.

    The gaps are independent and exponentially distributed.

    Args:
        rate: requests a second on average.
        seed: the same seed gives the same times.
        requests: how many times at most.
        seconds: no time is later.

    One of ``requests`` and ``seconds`` must be given.
    """
    assert requests is not None or seconds is not None
    end = float("inf") if seconds is None else seconds
    times = itertools.takewhile(lambda time: time < end, _times(rate, seed))
    return list(itertools.islice(times, requests))


def waves(low: float, high: float, *, period: float, seconds: float, seed: int) -> list[float]:
    """Return the times of a Poisson process whose rate rises and falls as a cosine, from ``low``.

    Args:
        low, high: requests a second at the least and at the most.
        period: seconds from one trough to the next.
        seconds: no time is later.
        seed: the same seed gives the same times.

    Source: thinning, Lewis and Shedler 1979.
    """
    random = np.random.default_rng(seed + 1)
    times = poisson(high, seed=seed, seconds=seconds)
    rates = (low + (high - low) * (1 - np.cos(2 * np.pi * np.array(times) / period)) / 2) / high
    return [t for t, kept in zip(times, random.random(len(times)) < rates, strict=True) if kept]


def _times(rate: float, seed: int) -> Iterator[float]:
    random = np.random.default_rng(seed)
    time = 0.0
    while True:
        yield time
        time += float(random.exponential(1 / rate))
