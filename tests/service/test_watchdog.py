"""Silence, long steps and idleness are distinguished."""

import pytest

from galley.service.watchdog import Watchdog


def test_idle_engines_are_healthy() -> None:
    dog = Watchdog(10, 100)
    assert all(dog.verdict(now, working=False) == "well" for now in range(1000))
    # Work that arrives after a long silence starts a new one.
    assert dog.verdict(1000, working=True) == "well"
    assert dog.verdict(1008.5, working=True) == "well"
    assert dog.verdict(1009.5, working=True) == "stalled"


def test_a_silent_engine_stalls_and_then_hangs() -> None:
    dog = Watchdog(10, 100)
    dog.report(0)
    assert dog.verdict(9.9, working=True) == "well"
    assert dog.verdict(10, working=True) == "stalled"
    dog.report(20)
    assert dog.verdict(25, working=True) == "well"
    assert dog.verdict(119.9, working=True) == "stalled"
    assert dog.verdict(120, working=True) == "hung"


def test_a_long_step_is_no_stall_but_one_without_end_hangs() -> None:
    dog = Watchdog(10, 100)
    for second in range(99):
        dog.report(second, step_seconds=second)
        assert dog.verdict(second + 0.5, working=True) == "well"
    dog.report(99, step_seconds=99)
    assert dog.verdict(100, working=True) == "hung"


@pytest.mark.parametrize("silent", [1e3, 1e6])
def test_a_timeout_of_zero_never_kills(silent: float) -> None:
    dog = Watchdog(10, 0)
    dog.report(0)
    assert dog.verdict(silent, working=True) == "stalled"
