"""Ray Serve's autoscaling policy of models: by the predicted time to the first token, and by load.

Ray pickles this module by value, so it imports nothing of Galley's.
"""

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_ENOUGH = 0.5
"""Share of the goal below which fewer replicas would do."""

_TREND_SECONDS = 60.0
"""Seconds over which the rise of the load is measured."""

_SHORTEST_TREND = 15.0
"""Seconds of figures below which there is no trend."""

_SEEN = "galley_seen"
"""Key of the policy's state: [seconds, running and waiting sequences] within the time of the trend."""

_WANTED = "galley_wanted"
"""Key of the policy's state: [seconds, number] of what was wanted lately, without those that a later and
larger number has overtaken."""


class ByFirstToken:
    """Decides how many replicas a model needs.

    Replicas record their figures with ``record_autoscaling_stats``. The number is the larger of two: that
    which keeps running and waiting sequences at ``load`` of the seats, and that which brings the predicted
    time to the first token, at the replica where it is shortest, down to its goal. Where the load rises,
    the first is for the load that there will be once a new replica serves. The number is not smaller than
    now while the prediction is above half of the goal, and no replica is removed that was wanted within
    ``down_seconds``. (Ray by itself removes replicas once fewer were wanted for as long, which are too many
    after a peak.)

    Args:
        first_token_seconds: goal for the predicted time to the first token.
        load: goal for running and waiting sequences, as a share of seats.
        down_seconds: how long a replica has to have been superfluous.
    """

    def __init__(self, first_token_seconds: float, load: float, down_seconds: float) -> None:
        self._goal = first_token_seconds
        self._load = load
        self._down = down_seconds

    def __call__(self, context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """Return the number of replicas; Ray applies the bounds and the other delays."""
        state, now = context.policy_state or {}, time.monotonic()
        before = state.get(_WANTED, [])
        latest = list(_latest(context.raw_metrics or {}).values())
        if not latest:
            waits = int(context.total_num_requests > 0)
            return max(context.target_num_replicas if waits else 0, waits), {_WANTED: before}
        busy = sum(one["running"] + one["waiting"] for one in latest)
        seen = noted(state.get(_SEEN, []), busy, now)
        ahead = max(one["start_seconds"] for one in latest)
        number = wanted(latest, self._goal, self._load, expected(seen, ahead))
        kept = held(before, number, now, self._down)
        most = kept[0][1]
        # The last replica has a delay of its own.
        few = number if most <= 1 else max(number, min(context.target_num_replicas, most))
        return int(few), {_WANTED: kept, _SEEN: seen}


def held(before: list[list[float]], number: int, now: float, seconds: float) -> list[list[float]]:
    """Return what was wanted within ``seconds``; the first has the largest number."""
    kept = [one for one in before if one[1] > number and one[0] >= now - seconds]
    return [*kept, [now, number]]


def noted(seen: list[list[float]], busy: float, now: float) -> list[list[float]]:
    """Return the load that was seen lately, with that of now."""
    return [*(one for one in seen if one[0] > now - _TREND_SECONDS), [now, busy]]


def expected(seen: list[list[float]], ahead: float) -> float:
    """Return the load in ``ahead`` seconds if it goes on rising as it did: at most twice that of now.

    A queue rises faster than what causes it, so a longer step would overshoot.
    """
    now, busy = seen[-1]
    times = [at - now for at, _ in seen]
    if -times[0] < _SHORTEST_TREND:
        return busy
    mean, level = sum(times) / len(times), sum(one for _, one in seen) / len(seen)
    moved = sum((t - mean) * (one - level) for t, (_, one) in zip(times, seen, strict=True))
    rise = moved / sum((t - mean) ** 2 for t in times)
    return max(busy, min(2.0 * busy, busy + rise * ahead))


def wanted(figures: list[dict[str, float]], goal: float, load: float, later: float = 0.0) -> int:
    """Return the number of replicas for these figures of those that there are.

    ``later``: running and waiting sequences once a new replica serves, if more than now.
    """
    busy = sum(one["running"] + one["waiting"] for one in figures)
    if not busy:
        return 0
    seats = sum(one["seats"] for one in figures) / len(figures)
    by_load = math.ceil(max(busy, later) / max(1.0, seats * load))
    predicted = min(one["first_token_seconds"] for one in figures)
    if predicted > goal:
        by_wait = math.ceil(len(figures) * min(2.0, predicted / goal))
    else:
        by_wait = len(figures) if predicted > goal * _ENOUGH else 1
    return max(1, by_load, by_wait)


def _latest(metrics: dict[str, Any]) -> dict[Any, dict[str, float]]:
    """Return the latest figures of each replica that has recorded all of them."""
    names = ("running", "waiting", "seats", "first_token_seconds", "start_seconds")
    found: dict[Any, dict[str, float]] = {}
    for name in names:
        for replica, series in metrics.get(name, {}).items():
            if series:
                found.setdefault(replica, {})[name] = series[-1].value
    return {replica: one for replica, one in found.items() if len(one) == len(names)}
