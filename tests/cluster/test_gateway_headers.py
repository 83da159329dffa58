"""Headers of Kubernetes inference gateways: how they change a request, and what is refused."""

import math

import pytest
from starlette.datastructures import Headers

from galley.errors import RequestError, SettingsError
from galley.gateway.caller import Caller
from galley.gateway.key_file import Tenant
from galley.gateway.tenants import Account
from galley.protocols.http.gateway_headers import (
    FAIRNESS_ID,
    OBJECTIVE,
    TTFT,
    Scheduling,
    scheduling_of,
)
from galley.settings.config import Settings
from galley.types import EngineRequest, Generate, SamplingParams

OBJECTIVES = {"chat": -20, "batch": 50}


def test_they_are_read_if_they_are_trusted() -> None:
    given = Headers({OBJECTIVE: "chat", FAIRNESS_ID: "team-7", TTFT: "250"})
    assert scheduling_of(given, OBJECTIVES) == Scheduling("team-7", -20, 0.25)
    assert scheduling_of(given, None) == Scheduling("", 0, math.inf)
    assert scheduling_of(Headers({OBJECTIVE: "unknown"}), OBJECTIVES).priority == 0
    assert Settings().objectives is None
    trusting = Settings(gateway_headers=True, objective=("chat=-20", "batch=50"))
    assert trusting.objectives == OBJECTIVES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((TTFT, value) for value in ("soon", "0", "-1", "nan", "1e99", f"250{' ' * 29}s")),
        (FAIRNESS_ID, "a/b"),
        (FAIRNESS_ID, "x" * 65),
    ],
)
def test_what_is_not_valid_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(RequestError, match=name) as refused:
        scheduling_of(Headers({name: value}), OBJECTIVES)
    assert refused.value.param == name


@pytest.mark.parametrize("objective", ["chat", "chat=high", "chat=101", "=5", "chat=5.0"])
def test_an_objective_needs_a_name_and_a_priority(objective: str) -> None:
    with pytest.raises(SettingsError, match="NAME=PRIORITY"):
        Settings(gateway_headers=True, objective=(objective,))
    with pytest.raises(SettingsError, match="gateway_headers is off"):
        Settings(objective=("chat=5",))


def test_flows_of_a_tenant_compete_like_tenants_and_share_its_prefixes() -> None:
    account = Account(Tenant(name="acme", weight=2.0, priority=10))
    plain, flow = Caller("a", account), Caller("b", account, flow="team-7", objective=-20)
    assert flow.share == ("acme/team-7", 2.0)
    assert plain.share == ("acme", 2.0)
    assert flow.cache_salt() == plain.cache_salt()
    payload = Generate(prompt=[1], sampling=SamplingParams(max_tokens=1))
    [marked] = flow.marked([EngineRequest(id="b", payload=payload, priority=3)])
    assert (marked.tenant, marked.weight, marked.priority) == ("acme/team-7", 2.0, 3 + 10 - 20)


def test_the_first_token_is_due_before_the_answer() -> None:
    caller = Caller("a", arrived=100.0, deadline=160.0, first_token_by=100.25)
    assert caller.scheduled_by == 100.25
    assert Caller("a", arrived=100.0, deadline=160.0).scheduled_by == 160.0
