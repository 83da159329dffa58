"""The queue of engines whose steps take whole requests."""

from hypothesis import given
from hypothesis import strategies as st

from galley.engine.fair_queue import FairQueue, Queued
from galley.types import Embed, EngineRequest


def queue(budget: int = 10) -> FairQueue[Embed]:
    return FairQueue(priority_steps=4, budget=budget)


def add(
    waiting: FairQueue[Embed], name: str, length: int, *, group: str = "", tenant: str = "a"
) -> None:
    payload = Embed(prompt=[1] * length)
    request = EngineRequest(id=name, payload=payload, tenant=tenant)
    waiting.add(request, payload, group)


def ids(items: list[Queued[Embed]]) -> list[str]:
    return [item.request.id for item in items]


def test_a_step_has_one_group_within_the_budget_and_at_least_one() -> None:
    waiting = queue()
    for name, length, group in (
        ("a", 6, "x"),
        ("b", 1, "y"),
        ("c", 4, "x"),
        ("d", 1, "x"),
        ("e", 99, "y"),
    ):
        add(waiting, name, length, group=group)
    assert [ids(waiting.take()) for _ in range(4)] == [["a", "c"], ["b"], ["d"], ["e"]]
    assert len(waiting) == 0
    assert not waiting.groups


def test_a_step_that_failed_costs_its_tenant_nothing() -> None:
    waiting = queue(budget=2)
    for number in range(4):
        add(waiting, f"a{number}", 2, tenant="a")
        add(waiting, f"b{number}", 2, tenant="b")
    for _ in range(3):
        failed = waiting.take()
        assert ids(failed) == ["a0"]
        waiting.put_back(failed)
    assert [ids(waiting.take())[0][0] for _ in range(8)] == list("abababab")


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from("xy"), st.sampled_from("abc"), st.booleans())
    )
)
def test_each_request_is_taken_once_unless_it_was_aborted(
    requests: list[tuple[int, str, str, bool]],
) -> None:
    waiting = queue()
    for number, (length, group, tenant, _) in enumerate(requests):
        add(waiting, str(number), length, group=group, tenant=tenant)
    waiting.abort(
        [str(number) for number, request in enumerate(requests) if request[3]] + ["unknown"]
    )
    kept = sorted(str(number) for number, request in enumerate(requests) if not request[3])
    assert len(waiting) == len(kept)
    taken: list[str] = []
    while len(waiting):
        items = waiting.take()
        assert len(items) == 1 or sum(item.cost for item in items) <= 10
        taken += ids(items)
        waiting.finish(items)
    assert sorted(taken) == kept
