"""When a batch waits for another request. Time is simulated: every arrival is known."""

import pytest

from galley.runtimes.gathering import Arrivals, BatchCosts, wait_seconds


def costs(fixed: float, each: float, sizes: tuple[int, ...] = (1, 4, 16, 2, 8)) -> BatchCosts:
    made = BatchCosts()
    for rows in sizes:
        made.observe(rows, fixed + each * rows)
    return made


def arrivals(gap: float, count: int = 40) -> Arrivals:
    made = Arrivals()
    for i in range(count):
        made.arrived(i * gap)
    return made


@pytest.mark.parametrize(("fixed", "each"), [(0.002, 0.0001), (0.0, 0.001), (0.01, 0.0)])
def test_the_fixed_time_of_a_batch_is_found(fixed: float, each: float) -> None:
    assert costs(fixed, each).fixed == pytest.approx(fixed, abs=1e-9)


def test_batches_of_one_size_do_not_determine_the_fixed_time() -> None:
    assert costs(0.002, 0.0001, (4, 4, 4, 4)).fixed == 0.0


def test_later_batches_count_more() -> None:
    made = costs(0.002, 0.0001)
    for rows in (1, 4, 16, 2, 8) * 60:
        made.observe(rows, 0.006 + 0.0001 * rows)
    assert made.fixed == pytest.approx(0.006, rel=0.05)


def test_frequent_requests_are_waited_for_until_it_no_longer_pays() -> None:
    """Arrivals every 0.11 ms, and a fixed time of 2 ms: 18 requests and more wait no longer."""
    pace, now, made = arrivals(0.00011), 39 * 0.00011, costs(0.002, 0.00001)
    waits = [waiting for waiting in range(1, 64) if wait_seconds(waiting, made, pace, now) > 0]
    assert waits == list(range(1, 18))


def test_rare_requests_are_not_waited_for() -> None:
    assert wait_seconds(1, costs(0.002, 0.0001), arrivals(0.01), 39 * 0.01) == 0.0


def test_without_a_fixed_time_nothing_is_waited_for() -> None:
    assert wait_seconds(1, costs(0.0, 0.001), arrivals(0.00001), 39 * 0.00001) == 0.0


def test_the_wait_ends_when_requests_cease() -> None:
    """A burst is over: the silence since its last request indicates that no more will come."""
    pace, last = arrivals(0.0001), 39 * 0.0001
    wait = wait_seconds(4, costs(0.002, 0.00001), pace, last)
    assert wait == pytest.approx(0.0004)
    assert wait_seconds(4, costs(0.002, 0.00001), pace, last + 1.01 * wait) == 0.0


def test_stragglers_of_a_burst_are_waited_for_but_not_the_next_burst() -> None:
    """Eight clients send again as soon as they are answered, every 50 ms, within a millisecond."""
    pace, now = Arrivals(), 0.0
    for _ in range(10):
        for place in range(8):
            pace.arrived(now + place * 0.0001)
        now += 0.05
    last = now - 0.05 + 0.0007
    wait = wait_seconds(6, costs(0.05, 0.0001), pace, last)
    assert 0.0003 < wait < 0.003
    assert wait_seconds(6, costs(0.05, 0.0001), pace, last + 1.01 * wait) == 0.0


def test_before_two_requests_nothing_is_known() -> None:
    pace = Arrivals()
    assert wait_seconds(1, costs(0.002, 0.0001), pace, 0.0) == 0.0
    pace.arrived(0.0)
    assert wait_seconds(1, costs(0.002, 0.0001), pace, 0.0) == 0.0
