"""The limits of a tenant's account: what fits is counted, and one request more is refused."""

from collections.abc import Callable

import pytest

from galley.errors import RateLimited
from galley.gateway.key_file import Tenant
from galley.gateway.tenants import Account


@pytest.mark.parametrize("limit", [1, 3])
def test_as_many_requests_run_as_are_allowed(limit: int) -> None:
    account = Account(Tenant(name="one", concurrency=limit))
    began = [account.enter() for _ in range(limit)]
    with pytest.raises(RateLimited, match=f"allowed {limit} concurrent requests, and has {limit}"):
        account.enter()
    account.leave(began.pop())
    account.enter()
    assert account.running == limit


@pytest.fixture
def clock() -> Callable[[float], float]:
    """A clock that moves forward by its argument."""
    now = 0.0

    def move(seconds: float = 0.0) -> float:
        nonlocal now
        now += seconds
        return now

    return move


def test_requests_of_a_minute_are_limited_and_come_back(clock: Callable[..., float]) -> None:
    account = Account(Tenant(name="one", requests_per_minute=6), clock=clock)
    for _ in range(6):
        account.leave(account.enter())
    with pytest.raises(RateLimited, match="may send 6 requests per minute") as refused:
        account.enter()
    assert refused.value.retry_after == pytest.approx(10)
    clock(10)
    account.leave(account.enter())
    with pytest.raises(RateLimited):
        account.enter()
