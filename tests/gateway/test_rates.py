"""Token buckets: the requests they admit, and the remaining tokens."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.gateway.rates import MINUTE, Bucket, LastMinute

LIMITS = st.integers(1, 10_000)
# Clock steps in seconds, and the amount requested after each as a share of the limit.
AMOUNTS = st.lists(st.tuples(st.floats(0, 90), st.floats(0, 1)), min_size=1, max_size=60)


@given(limit=LIMITS, amounts=AMOUNTS)
def test_a_minute_lets_through_the_burst_and_the_refill(
    limit: int, amounts: list[tuple[float, float]]
) -> None:
    now, taken = 0.0, []
    bucket = Bucket(limit, now)
    for step, share in amounts:
        now += step
        amount = share * limit
        if bucket.wait(amount, now) == 0:
            bucket.spend(amount, now)
            taken.append((now, amount))
    for first, last in itertools.combinations_with_replacement(range(len(taken)), 2):
        seconds = taken[last][0] - taken[first][0]
        total = sum(amount for _, amount in taken[first : last + 1])
        assert total <= limit * (1 + seconds / MINUTE) * (1 + 1e-9)


@given(limit=LIMITS, spent=st.floats(0, 3), seconds=st.floats(0, 300))
def test_the_refill_is_exact(limit: int, spent: float, seconds: float) -> None:
    bucket = Bucket(limit, 10.0)
    bucket.spend(spent * limit, 10.0)
    expected = min(limit, limit - spent * limit + seconds / MINUTE * limit)
    assert bucket.left(10.0 + seconds) == pytest.approx(expected, rel=1e-9, abs=1e-6 * limit)


@given(limit=LIMITS, spent=st.floats(0, 3), share=st.floats(0, 1))
def test_what_is_waited_for_fits(limit: int, spent: float, share: float) -> None:
    bucket = Bucket(limit, 0.0)
    bucket.spend(spent * limit, 0.0)
    wait = bucket.wait(share * limit, 0.0)
    assert bucket.left(wait) >= share * limit - 1e-6 * limit
    if wait > 1e-3:
        assert bucket.left(wait * 0.99) < share * limit


@given(limit=LIMITS, other=LIMITS, spent=st.floats(0, 2))
def test_another_limit_forgets_nothing(limit: int, other: int, spent: float) -> None:
    bucket = Bucket(limit, 0.0)
    bucket.spend(spent * limit, 0.0)
    bucket.resize(other, 0.0)
    assert bucket.left(0.0) == pytest.approx(other - spent * limit, rel=1e-9, abs=1e-6)


def test_returned_tokens_are_available_again() -> None:
    bucket = Bucket(100, 0.0)
    bucket.spend(80, 0.0)
    bucket.spend(-30, 0.0)
    assert bucket.left(0.0) == 50
    bucket.spend(-300, 0.0)
    assert bucket.left(0.0) == 100


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 100)), max_size=50))
def test_the_last_minute_is_what_came_in_it(counted: list[tuple[float, int]]) -> None:
    minute, now, came = LastMinute(), 0.0, []
    for step, amount in counted:
        now += step
        minute.add(amount, now)
        came.append((int(now), amount))
        assert minute.total(now) == sum(n for second, n in came if second > int(now) - MINUTE)
