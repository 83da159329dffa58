"""Work that may prove unwanted costs the tenant nothing until it is wanted."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from galley.errors import RateLimited
from galley.gateway.draft import Draft
from galley.gateway.key_file import Tenant
from galley.gateway.tenants import Account


@pytest.fixture
def tokens() -> Counter:
    return Counter("tokens", "Tokens", registry=CollectorRegistry())


def counted(counter: Counter) -> float:
    [metric] = counter.collect()
    return metric.samples[0].value


def usage(account: Account) -> tuple[int, int, int, int, int]:
    """Return what runs, the last minute's requests and tokens, and what the buckets have left."""
    assert account.requests is not None
    assert account.tokens is not None
    now = 0.0
    return (
        account.running,
        account.recent_requests.total(now),
        account.recent_tokens.total(),
        int(account.requests.left(now)),
        int(account.tokens.left(now)),
    )


def limited() -> Account:
    tenant = Tenant(name="one", requests_per_minute=10, tokens_per_minute=100, concurrency=3)
    return Account(tenant, clock=lambda: 0.0)


def work(account: Account, counter: Counter, *, ends: bool) -> float:
    """Do what a call does: 30 tokens, of which 20 were reserved and 5 of those are given back."""
    began = account.enter()
    account.reserve(20)
    account.spend(15)
    account.use(30)
    account.count(counter, 30)
    if ends:
        account.spend(-5)
        account.leave(began)
    return began


def test_a_dropped_draft_is_in_no_count(tokens: Counter) -> None:
    account = limited()
    work(Draft(account), tokens, ends=False)
    work(Draft(account), tokens, ends=True)
    assert usage(account) == (0, 0, 0, 10, 100)
    assert counted(tokens) == 0


def test_an_accepted_draft_is_charged_as_if_it_had_been_wanted_at_once(tokens: Counter) -> None:
    account = limited()
    draft = Draft(account)
    work(draft, tokens, ends=True)
    began = work(draft, tokens, ends=False)
    draft.accept()
    assert usage(account) == (1, 2, 60, 8, 35)
    assert counted(tokens) == 60
    draft.spend(-5)
    draft.leave(began)
    work(draft, tokens, ends=True)
    assert usage(account) == (0, 3, 90, 7, 10)
    assert counted(tokens) == 90


def test_a_tenant_at_its_limit_has_no_drafts(tokens: Counter) -> None:
    account = limited()
    drafted = Draft(account)
    work(drafted, tokens, ends=False)
    for _ in range(3):
        account.enter()
    before = usage(account)
    with pytest.raises(RateLimited, match="3 concurrent requests"):
        Draft(account).enter()
    with pytest.raises(RateLimited, match="3 concurrent requests"):
        drafted.accept()
    assert usage(account) == before
    assert counted(tokens) == 0
    account.spend(101)
    with pytest.raises(RateLimited, match="100 tokens per minute"):
        Draft(account).reserve(1)
