"""The autoscalers that a simulation compares: that of Galley on Ray Serve, and those usual elsewhere.

Each looks at the replicas at its own interval and says how many there should be. A replica that is added
serves after the time of a cold start; one that is removed ends its requests first.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from galley.cluster.config import Scale, Slo
from galley.cluster.on_ray.scaling import expected, held, noted, wanted

_LOAD: Final = Slo().load
"""Running and waiting requests that autoscalers aim at, as a share of the seats."""

_AIMED_AT: Final = 0.75
"""Share of the goal for the first token that Kubernetes' autoscaler aims at."""

_HPA_TOLERANCE: Final = 0.1
_HPA_DOWN_SECONDS: Final = 300.0
_HPA_MOST_ADDED: Final = 4
"""Kubernetes' defaults: the ratio that changes nothing, the stabilization of a smaller number, and how many
pods are added at once where doubling adds fewer (autoscaling/v2, HPAScalingRules)."""


_RAY_LOOK_BACK_SECONDS: Final = 30.0
"""Seconds over which Ray Serve averages the requests of replicas."""


class Load(NamedTuple):
    """The state of the serving replicas, as an autoscaler sees it.

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
    """The limits that hold for every autoscaler.

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
        number: returns the number for a load, the replicas that there are, and the time.
        down: the time in seconds.
        interval: seconds between two decisions.
    """

    def __init__(
        self, number: Callable[[Load, int, float], int], down: float, interval: float
    ) -> None:
        self.interval = interval
        self._number, self._down = number, down
        self._before: list[list[float]] = []

    def wanted(self, load: Load, current: int, now: float) -> int:
        """See :class:`Scaler`."""
        wanted = self._number(load, current, now)
        self._before = held(self._before, wanted, now, self._down)
        return max(wanted, min(current, int(self._before[0][1])))


def hpa(metric: Callable[[Load], float], target: float) -> Scaler:
    """Return Kubernetes' HorizontalPodAutoscaler on one metric, with its default behavior.

    Source: kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, algorithm details.
    """

    def number(load: Load, current: int, _: float) -> int:
        ratio = metric(load) / target
        steady = abs(ratio - 1) <= _HPA_TOLERANCE
        wanted = current if steady else math.ceil(load.replicas * ratio)
        return min(wanted, max(2 * current, current + _HPA_MOST_ADDED))

    return Stabilized(number, _HPA_DOWN_SECONDS, interval=15.0)


class Delayed:
    """An autoscaler whose number takes effect once it was on the same side for a time, as in Ray Serve.

    Args:
        number: returns the number for a load, the replicas that there are, and the time.
        up: seconds until replicas are added.
        down: seconds until replicas are removed.
        interval: seconds between two decisions.
    """

    def __init__(
        self, number: Callable[[Load, int, float], int], up: float, down: float, interval: float
    ) -> None:
        self.interval = interval
        self._number = number
        self._up, self._down = up, down
        self._side, self._since = 0, 0.0

    def wanted(self, load: Load, current: int, now: float) -> int:
        """See :class:`Scaler`."""
        wanted = self._number(load, current, now)
        side = (wanted > current) - (wanted < current)
        if side != self._side:
            self._side, self._since = side, now
        waited = now - self._since
        if side and waited >= (self._up if side > 0 else self._down):
            self._since = now
            return wanted
        return current


class _ByFirstToken:
    """Galley's policy, :class:`galley.cluster.on_ray.scaling.ByFirstToken`, without Ray."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._seen: list[list[float]] = []

    def number(self, load: Load, now: float) -> int:
        figures = {
            "running": load.running / load.replicas,
            "waiting": load.waiting / load.replicas,
            "seats": load.seats / load.replicas,
            "first_token_seconds": load.first_token,
        }
        self._seen = noted(self._seen, load.running + load.waiting, now)
        later = expected(self._seen, self._bounds.start)
        replicas = [figures] * load.replicas
        return max(1, wanted(replicas, self._bounds.first_token, _LOAD, later))


def _galley(bounds: Bounds) -> Scaler:
    """Return Galley's policy with the default delays of a cluster."""
    scale, interval, policy = Scale(), 5.0, _ByFirstToken(bounds)
    stabilized = Stabilized(
        lambda load, _, now: policy.number(load, now), scale.down_seconds, interval
    )
    return Delayed(stabilized.wanted, scale.up_seconds, 0.0, interval)


def _ray_requests(bounds: Bounds) -> Scaler:
    """Return Ray Serve's policy: ``target_ongoing_requests`` is the same load, all else has its default.

    Source: ray.serve.config.AutoscalingConfig of 2.60: look_back_period_s, upscale_delay_s,
    downscale_delay_s and metrics_interval_s.
    """
    seen: deque[tuple[float, int]] = deque()

    def number(load: Load, current: int, now: float) -> int:
        seen.append((now, load.running + load.waiting))
        while seen[0][0] <= now - _RAY_LOOK_BACK_SECONDS:
            seen.popleft()
        ongoing = sum(count for _, count in seen) / len(seen)
        return max(1, math.ceil(ongoing / max(1.0, load.seats / load.replicas * _LOAD)))

    return Delayed(number, up=30.0, down=600.0, interval=10.0)


SCALERS: Final[Mapping[str, Callable[[Bounds], Scaler]]] = {
    "galley": _galley,
    "ray-requests": _ray_requests,
    "hpa-requests": lambda bounds: hpa(
        lambda load: (load.running + load.waiting) / load.seats, _LOAD
    ),
    "hpa-first-token": lambda bounds: hpa(
        lambda load: load.first_token, bounds.first_token * _AIMED_AT
    ),
}
"""Name -> what makes the autoscaler."""
