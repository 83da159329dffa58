"""Simulated autoscalers, and traffic that rises and falls."""

import itertools

import numpy as np
import pytest

from galley.bench.serve.arrivals import poisson, waves
from galley.plan.cluster.scalers import SCALERS, Bounds, Load
from galley.plan.cluster.simulate import Outcome, Scaling, simulate
from galley.plan.cluster.traffic import Traffic
from tests.plan.simulated import engine, turns


def scaled(scaler: str, traffic: Traffic, **bounds: float) -> Outcome:
    limits = Bounds(**{"least": 1, "most": 40, "start": 20.0, "first_token": 0.5, **bounds})  # type: ignore[arg-type]
    return simulate(engine(seats=4), 1, "galley", traffic, None, Scaling(scaler, limits))


@pytest.mark.parametrize("scaler", SCALERS)
def test_autoscalers_follow_the_load_within_their_bounds(scaler: str) -> None:
    times = waves(0.5, 12.0, period=160.0, seconds=160.0, seed=3)
    traffic = turns(*((t, 400, 100) for t in times))
    found = scaled(scaler, traffic)
    assert found.requests == len(times)
    assert found == scaled(scaler, traffic)
    counts = [count for _, count in found.timeline]
    assert counts[0] == 1
    assert 1 < found.replicas == max(counts) <= 40
    assert 1 < found.mean_replicas < found.replicas
    # The first new replica serves after its start, and none is added beyond the most that are allowed.
    assert found.timeline[1][0] >= 20.0
    assert scaled(scaler, traffic, most=2).replicas == 2


def test_an_idle_cluster_shrinks_to_its_least_after_the_time_of_stabilization() -> None:
    times = [*poisson(6.0, seed=1, seconds=60.0), 1000.0]
    traffic = turns(*((t, 400, 100) for t in times))
    for scaler, seconds in (("galley", 300.0), ("hpa-requests", 300.0), ("ray-requests", 600.0)):
        found = scaled(scaler, traffic)
        down = [
            when
            for (_, before), (when, after) in itertools.pairwise(found.timeline)
            if after < before
        ]
        assert found.timeline[-1][1] == 1
        assert min(down) >= seconds


def test_kubernetes_formula_on_a_ratio() -> None:
    busy = Load(replicas=4, running=40, waiting=24, seats=64, first_token=1.0)
    for load, wanted in (
        (busy, 5),  # 4 * (64 / 64) / 0.8
        (busy._replace(waiting=16), 4),  # within a tenth of the target
        (busy._replace(waiting=1000), 8),  # no more than twice as many at a time
    ):
        bounds = Bounds(least=1, most=100, start=1.0, first_token=1.0)
        assert SCALERS["hpa-requests"](bounds).wanted(load, 4, 0.0) == wanted


def decisions(
    scaler: str, loads: dict[float, int], until: float, start: float = 0.0
) -> list[tuple[float, int]]:
    """Return (seconds, replicas) of each change, for requests from certain times on."""
    one, current, found = SCALERS[scaler](Bounds(1, 100, start, 10.0)), 1, []
    for now in np.arange(0.0, until, one.interval):
        requests = loads[max(since for since in loads if since <= now)]
        seats = 10 * current
        load = Load(current, min(requests, seats), max(0, requests - seats), seats, 0.1)
        if (wanted := one.wanted(load, current, float(now))) != current:
            current = wanted
            found.append((float(now), wanted))
    return found


def test_ray_serve_acts_on_a_mean_that_was_high_for_its_delay() -> None:
    # Of the means over 30 s, 40 requests of a moment are too many for less than half a minute.
    assert decisions("ray-requests", {0.0: 4, 20.0: 40, 30.0: 4}, 200.0) == []
    lasting = decisions("ray-requests", {0.0: 4, 20.0: 40}, 200.0)
    assert lasting == [(50.0, 5)]
    falling = decisions("ray-requests", {0.0: 40, 100.0: 4}, 900.0)
    # At 110 s, the mean over the last 30 s still has 40 requests in it.
    assert falling == [(30.0, 5), (700.0, 1)]


def test_galley_acts_on_load_that_was_high_for_five_seconds() -> None:
    assert decisions("galley", {0.0: 4, 20.0: 40, 25.0: 4}, 200.0) == []
    assert decisions("galley", {0.0: 4, 20.0: 40, 60.0: 4}, 900.0) == [(25.0, 5), (360.0, 1)]


def test_galley_acts_on_the_load_that_there_will_be_when_a_replica_serves() -> None:
    rising = {5.0 * i: 4 + i for i in range(20)}  # a request more every five seconds
    # Nine requests are too many for one replica, and seventeen for two.
    at_once = decisions("galley", rising, 100.0)
    assert at_once == [(30.0, 2), (70.0, 3)]
    ahead = decisions("galley", rising, 100.0, start=30.0)  # six requests ahead
    assert ahead == [(20.0, 2), (40.0, 3), (80.0, 4)]


def test_a_wave_has_its_mean_rate_and_its_trough() -> None:
    times = np.array(waves(2.0, 10.0, period=100.0, seconds=1000.0, seed=0))
    assert len(times) == pytest.approx(6000, rel=0.05)
    phase = times % 100.0
    assert np.sum((phase < 10) | (phase > 90)) < np.sum(abs(phase - 50) < 10) / 3
