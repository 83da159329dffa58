"""Which job gets the next turn, where one job runs at a time."""

import asyncio
from collections.abc import Iterable

import pytest

from galley.errors import QueueFull
from galley.service.turns import Share, Turns

MIB = 2**20


class Clock:
    """A simulated clock: each job takes its declared number of seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def order(
    jobs: Iterable[tuple[str, int, float]], weights: dict[str, float] | None = None
) -> list[tuple[str, int]]:
    """Return the order in which waiting jobs (tenant, size, seconds) get their turns."""
    clock, done = Clock(), list[tuple[str, int]]()
    turns = Turns(10, clock=clock)

    async def work(tenant: str, size: int, seconds: float) -> None:
        await turns.wait(size, Share(tenant, (weights or {}).get(tenant, 1.0)))
        done.append((tenant, size))
        clock.now += seconds
        turns.pass_on()

    await turns.wait(0, Share("first"))
    waiting = [asyncio.create_task(work(*job)) for job in jobs]
    await asyncio.sleep(0)
    turns.pass_on()
    await asyncio.gather(*waiting)
    assert not turns.taken
    return done


def test_of_one_tenant_the_smallest_is_next() -> None:
    done = asyncio.run(order([("a", size, 1.0) for size in (30, 10, 20)]))
    assert [size for _, size in done] == [10, 20, 30]


def test_tenants_take_turns_however_much_one_of_them_sends() -> None:
    jobs = [("heavy", size, 10.0) for size in range(12)] + [("light", 99, 1.0)] * 3
    done = [tenant for tenant, _ in asyncio.run(order(jobs))]
    assert done[:5] == ["heavy", "light", "light", "light", "heavy"]


@pytest.mark.parametrize("weight", [2.0, 5.0])
def test_turns_go_by_weight(weight: float) -> None:
    jobs = [("a", 1, 1.0), ("b", 1, 1.0)] * 24
    done = [tenant for tenant, _ in asyncio.run(order(jobs, {"b": weight}))]
    first = done[:12]
    assert abs(first.count("b") / first.count("a") - weight) <= 1


def test_a_tenant_gains_no_credit_from_a_pause() -> None:
    asyncio.run(_a_tenant_gains_no_credit_from_a_pause())


async def _a_tenant_gains_no_credit_from_a_pause() -> None:
    clock = Clock()
    turns = Turns(10, clock=clock)
    for _ in range(100):
        await turns.wait(1, Share("busy"))
        clock.now += 1
        turns.pass_on()
    done: list[str] = []

    async def work(tenant: str) -> None:
        await turns.wait(1, Share(tenant))
        done.append(tenant)
        clock.now += 1
        turns.pass_on()

    await turns.wait(1, Share("busy"))
    clock.now += 1
    waiting = [asyncio.create_task(work(t)) for t in ["new"] * 6 + ["busy"] * 6]
    await asyncio.sleep(0)
    turns.pass_on()
    await asyncio.gather(*waiting)
    assert done[:6].count("busy") >= 2


def test_no_job_waits_for_long() -> None:
    asyncio.run(_no_job_waits_for_long())


async def _no_job_waits_for_long() -> None:
    turns = Turns(0.05)
    await turns.wait(0)
    with pytest.raises(QueueFull, match=r"within 0\.05 s") as full:
        await turns.wait(1)
    assert full.value.retry_after == 0.05
    with pytest.raises(QueueFull, match="the queue is full"):
        await turns.wait(100 * MIB)
    turns.pass_on()
    await turns.wait(100 * MIB)  # alone it is accepted


def test_the_tenant_with_most_jobs_loses_one_to_another() -> None:
    asyncio.run(_tenant_with_most_jobs_loses_one())


async def _tenant_with_most_jobs_loses_one() -> None:
    turns = Turns(10, most_bytes=64 * MIB)
    await turns.wait(0, Share("heavy"))
    heavy = [asyncio.create_task(turns.wait(8 * MIB, Share("heavy"))) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="the queue is full"):
        await turns.wait(8 * MIB, Share("heavy"))
    light = asyncio.create_task(turns.wait(12 * MIB, Share("light")))
    for _ in range(10):
        await asyncio.sleep(0)
    refused = [task for task in heavy if task.done()]
    assert len(refused) == 2
    assert all(isinstance(task.exception(), QueueFull) for task in refused)
    turns.pass_on()
    await light
    for task in heavy:
        task.cancel()
    await asyncio.gather(*heavy, return_exceptions=True)


def test_a_cancelled_job_is_skipped() -> None:
    asyncio.run(_cancelled_job_is_skipped())


async def _cancelled_job_is_skipped() -> None:
    turns = Turns(10)
    await turns.wait(0)
    leaving, staying = (asyncio.create_task(turns.wait(size)) for size in (1, 2))
    await asyncio.sleep(0)
    leaving.cancel()
    turns.pass_on()
    await staying
    assert leaving.cancelled()
    turns.pass_on()
    assert not turns.taken
