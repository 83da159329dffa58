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


def _times(rate: float, seed: int) -> Iterator[float]:
    random = np.random.default_rng(seed)
    time = 0.0
    while True:
        yield time
        time += float(random.exponential(1 / rate))
