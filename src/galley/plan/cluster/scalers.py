"""The autoscalers that a simulation compares: that of Galley on Ray Serve, and those usual elsewhere.

Each looks at the replicas at its own interval and says how many there should be. A replica that is added
serves after the time of a cold start; one that is removed ends its requests first.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from galley.cluster.on_ray.scaling import wanted

_LOAD: Final = 0.8
"""Running and waiting requests that autoscalers aim at, as a share of the seats."""

_AIMED_AT: Final = 0.75
"""Share of the goal for the first token that Kubernetes' autoscaler aims at."""

_HPA_TOLERANCE: Final = 0.1
_HPA_DOWN_SECONDS: Final = 300.0
_HPA_MOST_ADDED: Final = 4
"""Kubernetes' defaults: the ratio that changes nothing, the stabilization of a smaller number, and how many
pods are added at once where doubling adds fewer (autoscaling/v2, HPAScalingRules)."""


class Load(NamedTuple):
    """What an autoscaler sees of the replicas that serve.

    Attributes:
        replicas: their number.
        running, waiting: requests.
        seats: requests that they run at the same time.
        first_token: predicted seconds to a newcomer's first token, at the replica that has it soonest.
    """

    replicas: int
    running: int
    waiting: int
    seats: int
    first_token: float


class Scaler(Protocol):
    """Decides how many replicas there should be."""

    @property
    def interval(self) -> float:
        """The seconds between two decisions."""

    def wanted(self, load: Load, current: int, now: float) -> int:
        """Return the number of replicas; ``current``: those that serve or start."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds for every autoscaler.

    Attributes:
        least: the fewest replicas, at least 1; there are as many when the traffic begins.
        most: the most replicas.
        start: seconds until a new replica serves.
        first_token: goal for the predicted seconds to the first token.
    """

    least: int
    most: int
    start: float
    first_token: float


class Stabilized:
    """An autoscaler that removes no replica which it wanted within a time.

    Args:
        number: returns the number for a load and the replicas that there are.
        down: the time in seconds.
        interval: seconds between two decisions.
    """

    def __init__(self, number: Callable[[Load, int], int], down: float, interval: float) -> None:
        self.interval = interval
        self._number, self._down = number, down
        self._before: deque[tuple[float, int]] = deque()

    def wanted(self, load: Load, current: int, now: float) -> int:
        """See :class:`Scaler`."""
        wanted = self._number(load, current)
        # Of those wanted before, only what is larger than all that came later can be the maximum.
        while self._before and self._before[-1][1] <= wanted:
            self._before.pop()
        self._before.append((now, wanted))
        while self._before[0][0] < now - self._down:
            self._before.popleft()
        return max(wanted, min(current, self._before[0][1]))


def hpa(metric: Callable[[Load], float], target: float) -> Scaler:
    """Return Kubernetes' HorizontalPodAutoscaler on one metric, with its default behavior.

    Source: kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, algorithm details.
    """

    def number(load: Load, current: int) -> int:
        ratio = metric(load) / target
        steady = abs(ratio - 1) <= _HPA_TOLERANCE
        wanted = current if steady else math.ceil(load.replicas * ratio)
        return min(wanted, max(2 * current, current + _HPA_MOST_ADDED))

    return Stabilized(number, _HPA_DOWN_SECONDS, interval=15.0)


class Delayed:
    """An autoscaler whose number takes effect once it has been on the same side for a time.

    Args:
        number: returns the number for a load.
        up: seconds until replicas are added.
        down: seconds until replicas are removed.
        interval: seconds between two decisions.
    """

    def __init__(
        self, number: Callable[[Load], int], up: float, down: float, interval: float
    ) -> None:
        self.interval = interval
        self._number = number
        self._up, self._down = up, down
        self._side, self._since = 0, 0.0

    def wanted(self, load: Load, current: int, now: float) -> int:
        """See :class:`Scaler`."""
        wanted = self._number(load)
        side = (wanted > current) - (wanted < current)
        if side != self._side:
            self._side, self._since = side, now
        waited = now - self._since
        if side and waited >= (self._up if side > 0 else self._down):
            self._since = now
            return wanted
        return current


def _by_first_token(load: Load, goal: float) -> int:
    figures = {
        "running": load.running / load.replicas,
        "waiting": load.waiting / load.replicas,
        "seats": load.seats / load.replicas,
        "first_token_seconds": load.first_token,
    }
    return max(1, wanted([figures] * load.replicas, goal, _LOAD))


def _by_requests(load: Load) -> int:
    """Return how many replicas Ray Serve wants with ``target_ongoing_requests`` at the same load."""
    ongoing = load.running + load.waiting
    return max(1, math.ceil(ongoing / max(1.0, load.seats / load.replicas * _LOAD)))


SCALERS: Final[Mapping[str, Callable[[Bounds], Scaler]]] = {
    "galley": lambda bounds: Stabilized(
        lambda load, _: _by_first_token(load, bounds.first_token), down=300.0, interval=5.0
    ),
    # Ray Serve's defaults of upscale_delay_s, downscale_delay_s and metrics_interval_s.
    "ray-requests": lambda bounds: Delayed(_by_requests, up=30.0, down=600.0, interval=10.0),
    "hpa-requests": lambda bounds: hpa(
        lambda load: (load.running + load.waiting) / load.seats, _LOAD
    ),
    "hpa-first-token": lambda bounds: hpa(
        lambda load: load.first_token, bounds.first_token * _AIMED_AT
    ),
}
"""Name -> what makes the autoscaler."""
