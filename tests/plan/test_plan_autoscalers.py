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


def test_a_wave_has_its_mean_rate_and_its_trough() -> None:
    times = np.array(waves(2.0, 10.0, period=100.0, seconds=1000.0, seed=0))
    assert len(times) == pytest.approx(6000, rel=0.05)
    phase = times % 100.0
    assert np.sum((phase < 10) | (phase > 90)) < np.sum(abs(phase - 50) < 10) / 3
