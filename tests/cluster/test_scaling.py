"""How many replicas the autoscaling policy wants."""

from types import SimpleNamespace
from typing import Any

import pytest

from galley.cluster.on_ray.scaling import ByFirstToken, wanted

GOAL, LOAD = 1.0, 0.8


def figures(running: int = 0, waiting: int = 0, ttft: float = 0.0) -> dict[str, float]:
    return {
        "running": running,
        "waiting": waiting,
        "seats": 10.0,
        "first_token_seconds": ttft,
    }


@pytest.mark.parametrize(
    ("replicas", "number"),
    [
        ([figures()], 0),
        ([figures(running=1)], 1),
        ([figures(running=8)], 1),
        ([figures(running=9)], 2),
        ([figures(running=10, waiting=30)], 5),
        ([figures(running=4), figures(running=4)], 1),
        # Slow although there are seats: prompts are long.
        ([figures(running=4, ttft=1.5)], 2),
        ([figures(running=4, ttft=9.0)], 2),
        ([figures(running=2, ttft=2.0), figures(running=2, ttft=2.0)], 4),
        # A new request goes where the first token comes soonest.
        ([figures(running=4, ttft=9.0), figures(running=2, ttft=0.1)], 1),
        # Not so fast that fewer would do.
        ([figures(running=2, ttft=0.7), figures(running=2, ttft=0.7)], 2),
        ([figures(running=2, ttft=0.3), figures(running=2, ttft=0.3)], 1),
        # After the last request, the time that the last ones took does not count.
        ([figures(ttft=5.0)], 0),
    ],
)
def test_replicas_by_load_and_predicted_wait(replicas: list[dict[str, float]], number: int) -> None:
    assert wanted(replicas, GOAL, LOAD) == number


def context(
    metrics: dict[str, Any], requests: float = 0, target: int = 1, state: Any = None
) -> Any:
    return SimpleNamespace(
        raw_metrics=metrics,
        total_num_requests=requests,
        target_num_replicas=target,
        policy_state=state or {},
    )


def series(*values: float) -> list[SimpleNamespace]:
    return [SimpleNamespace(timestamp=at, value=value) for at, value in enumerate(values)]


def test_the_policy_reads_the_latest_figures_of_each_replica() -> None:
    metrics = {
        "running": {"a": series(0, 10), "b": series(10, 10)},
        "waiting": {"a": series(0, 4), "b": series(50, 0)},
        "seats": {"a": series(10, 10), "b": series(10)},
        "first_token_seconds": {"a": series(0.1), "b": series(0.1)},
        "start_seconds": {"a": series(60), "b": series(60)},
        "running_requests": {"a": series(3)},
    }
    number, state = ByFirstToken(GOAL, LOAD, 300.0)(context(metrics))
    assert number == 3
    assert [one[1] for one in state["galley_wanted"]] == [3]


def of_load(running: float, ttft: float = 0.1, start: float = 0) -> dict[str, Any]:
    found = {
        "running": running,
        "waiting": 0,
        "seats": 10,
        "first_token_seconds": ttft,
        "start_seconds": start,
    }
    return {name: {"a": series(value)} for name, value in found.items()}


def test_replicas_stay_for_a_time_after_they_were_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("galley.cluster.on_ray.scaling.time.monotonic", lambda: clock[0])
    policy, target = ByFirstToken(GOAL, LOAD, 300.0), 1
    state: dict[str, Any] = {}
    seen = []
    for clock[0], running in (
        (1000.0, 40),  # five are wanted
        (1100.0, 8),
        (1200.0, 24),
        (1299.0, 8),
        (1301.0, 8),  # the peak is too long ago, but three were wanted since
        (1499.0, 8),
        (1501.0, 8),
        (1600.0, 0),
    ):
        target, state = policy(context(of_load(running), 1, target, state))
        seen.append(target)
    assert seen == [5, 5, 5, 5, 3, 3, 1, 0]


@pytest.mark.parametrize(
    ("loads", "start", "number"),
    [
        ([8, 8, 8, 8], 60, 1),
        ([2, 4, 6, 8], 60, 2),  # 24 in a minute, but no more than twice as many as now
        ([5, 6, 7, 8], 60, 2),  # 14 in a minute
        ([5, 6, 7, 8], 0, 1),
        ([8, 7, 6, 5], 60, 1),
        ([2, 8], 60, 1),  # ten seconds are no trend
    ],
)
def test_replicas_are_added_for_the_load_once_they_serve(
    monkeypatch: pytest.MonkeyPatch, loads: list[float], start: float, number: int
) -> None:
    clock = [0.0]
    monkeypatch.setattr("galley.cluster.on_ray.scaling.time.monotonic", lambda: clock[0])
    policy, target = ByFirstToken(GOAL, LOAD, 300.0), 1
    state: dict[str, Any] = {}
    for clock[0], running in zip(range(1000, 1040, 10), loads, strict=False):
        target, state = policy(context(of_load(running, start=start), 1, target, state))
    assert target == number


def test_a_call_that_waits_wakes_a_replica() -> None:
    policy = ByFirstToken(GOAL, LOAD, 300.0)
    assert policy(context({}, requests=1, target=0))[0] == 1
    assert policy(context({}, requests=0, target=1))[0] == 0
    # A new replica has no figures at first, and is needed.
    assert policy(context({"running": {"a": series(1)}}, requests=1, target=2))[0] == 2
