"""Tenants that compete for the engine: tokens by weight, and no waiting behind another's backlog."""

from collections import Counter

import pytest

from tests.engine.machine import BUDGET, MAX_RUNNING, EngineMachine

BACKLOG = 120


def machine_with(blocks: int) -> EngineMachine:
    machine = EngineMachine()
    machine.set_up(blocks, prefix_cache=False)
    return machine


def add(
    machine: EngineMachine,
    tenant: str,
    *,
    length: int = 20,
    output: int = 10,
    priority: int = 0,
) -> str:
    machine.add(family=0, length=length, output=output, priority=priority, salt="", tenant=tenant)
    return list(machine.live)[-1]


def steps_until_started(machine: EngineMachine, request_id: str) -> int:
    begun = machine.steps
    while request_id not in machine.started:
        machine.step()
    return machine.steps - begun


@pytest.mark.parametrize(("length", "output"), [(20, 10), (100, 1), (3, 40)])
def test_tenants_get_tokens_by_weight(length: int, output: int) -> None:
    """Weights 1 and 3, both backlogged, however the work is divided into requests."""
    machine = machine_with(40)
    for _ in range(BACKLOG):
        add(machine, "", length=length, output=output)
        add(machine, "heavy", length=length, output=output)
    computed: Counter[str] = Counter()
    for _ in range(300):
        sequences = list(machine.live.values())
        before = {s.id: s.computed for s in sequences}
        machine.step()
        for s in sequences:
            computed[s.request.tenant] += max(0, s.computed - before[s.id])
    assert {s.request.tenant for s in machine.live.values()} == {"", "heavy"}
    assert computed["heavy"] / computed[""] == pytest.approx(3, rel=0.15)


def test_a_light_tenant_does_not_wait_behind_a_backlog() -> None:
    """All slots are taken by long requests: one is preempted."""
    machine = machine_with(80)
    for _ in range(BACKLOG):
        add(machine, "heavy", length=20, output=200)
    for _ in range(30):
        machine.step()
    assert len(machine.scheduler.running) == MAX_RUNNING
    for _ in range(3):
        assert steps_until_started(machine, add(machine, "", output=5)) <= 2
        for _ in range(10):
            machine.step()


def test_a_tenant_cannot_ask_for_more_by_priority() -> None:
    """A request's priority orders only its own tenant's requests."""
    machine = machine_with(80)
    for _ in range(BACKLOG):
        add(machine, "heavy", output=200, priority=-100)
    for _ in range(30):
        machine.step()
    assert steps_until_started(machine, add(machine, "", output=5)) <= 2


def test_a_light_tenant_gets_blocks_of_a_full_cache() -> None:
    """With weights 3 to 1 the heavy tenant keeps at least three quarters of the blocks."""
    machine = machine_with(16)
    for _ in range(BACKLOG):
        add(machine, "heavy", length=40, output=20)
    for _ in range(10):
        machine.step()
    assert machine.pool.free == 0 or machine.scheduler.waiting
    assert steps_until_started(machine, add(machine, "", length=20, output=5)) <= 3


def test_another_tenants_long_prompt_does_not_delay_a_new_request() -> None:
    machine = machine_with(80)
    add(machine, "heavy", length=60 * BUDGET // 3, output=1)
    machine.step()
    assert steps_until_started(machine, add(machine, "", length=5, output=1)) <= 2


def test_idle_time_earns_no_credit() -> None:
    """A late tenant shares from now on, and does not catch up."""
    machine = machine_with(40)
    for _ in range(BACKLOG):
        add(machine, "heavy", length=60, output=1)
    for _ in range(100):
        machine.step()
    late = [add(machine, "", length=60, output=1) for _ in range(20)]
    finished_before = BACKLOG - len(machine.live) + len(late)
    for _ in range(40):
        machine.step()
    served = sum(request not in machine.live for request in late)
    others = BACKLOG - len([s for s in machine.live if s not in late]) - finished_before
    assert others > served > 0


def test_a_single_tenant_is_served_in_order() -> None:
    machine = machine_with(40)
    ids = [add(machine, "heavy") for _ in range(12)]
    while machine.live:
        machine.step()
    assert machine.started == ids
    assert machine.scheduler.preemptions == 0
