"""Drafting is suspended where it costs more than it gains, and tried again later."""

import random

import pytest

from galley.speculation.trial import Trial


def share(speculating: float, steps: int, *, trial: Trial, plain: float = 100.0) -> float:
    """Return the share of steps that drafted, for the given paces with and without, within a tenth."""
    rng = random.Random(0)
    looked = 0
    for _ in range(steps):
        looks = trial.looks(4)
        pace = (speculating if looks else plain) * rng.uniform(0.9, 1.1)
        trial.learn(4, looks, 4, 4 / pace)
        looked += looks
    return looked / steps


@pytest.mark.parametrize(
    ("speculating", "least", "most"),
    [(240.0, 0.9, 1.0), (115.0, 0.9, 1.0), (100.0, 0.5, 1.0), (80.0, 0.0, 0.1), (30.0, 0.0, 0.1)],
)
def test_what_is_better_is_done_mostly(speculating: float, least: float, most: float) -> None:
    assert least <= share(speculating, 2000, trial=Trial()) <= most


def test_a_change_is_found() -> None:
    trial = Trial()
    assert share(60.0, 1500, trial=trial) < 0.1
    share(200.0, 1500, trial=trial)
    assert share(200.0, 500, trial=trial) > 0.95
    share(60.0, 200, trial=trial)
    assert share(60.0, 1500, trial=trial) < 0.1


def test_numbers_of_sequences_are_apart() -> None:
    trial = Trial()
    share(30.0, 500, trial=trial)
    assert trial.looks(1)
    assert trial.looks(32)
