"""The router's choices: prefixes, predicted wait, and what it does when figures are old."""

import msgspec
import pytest

from galley.cluster.router import SILENT_SECONDS, PrefixRouter
from galley.service.routing import ReplicaFigures
from galley.types import Adapter, EngineRequest, Generate, SamplingParams
from galley.types.block_hashes import HashChain, adapter_hash, salt_hash

PROMPT = list(range(100, 100 + 160))


def request(prompt: list[int] = PROMPT, salt: str = "", adapter: str = "") -> EngineRequest:
    named = Adapter(adapter, "/a", adapter) if adapter else None
    payload = Generate(prompt=prompt, sampling=SamplingParams(max_tokens=8))
    return EngineRequest(id="r", payload=payload, cache_salt=salt, adapter=named)


def replica(
    name: str,
    owed: float = 0.0,
    pace: float | None = None,
    blocks: set[bytes] | None = None,
    silent: float = 0.0,
) -> ReplicaFigures:
    return ReplicaFigures(name, owed, pace, blocks or set(), silent)


def blocks_of(prompt: list[int], root: bytes, count: int) -> set[bytes]:
    return set(HashChain(root).upto(prompt, count)[:count])


def test_the_replica_with_the_prefix_gets_the_request_until_its_queue_costs_more() -> None:
    cached = blocks_of(PROMPT, salt_hash(""), 9)  # 144 tokens
    for owed, chosen in ((143.0, 1), (145.0, 0)):
        candidates = [replica("a"), replica("b", owed=owed, blocks=cached)]
        choice = PrefixRouter().choose(request(), candidates)
        assert choice == (chosen, 144 * chosen)


def test_a_prefix_of_another_tenant_or_adapter_counts_for_nothing() -> None:
    cached = blocks_of(PROMPT, salt_hash("one"), 9)
    candidates = [replica("a"), replica("b", owed=1.0, blocks=cached)]
    assert PrefixRouter().choose(request(salt="one"), candidates).candidate == 1
    assert PrefixRouter().choose(request(salt="two"), candidates).candidate == 0
    assert PrefixRouter().choose(request(salt="one", adapter="x"), candidates).candidate == 0
    root = adapter_hash(salt_hash("one"), "x")
    candidates[1] = replica("b", owed=1.0, blocks=blocks_of(PROMPT, root, 9))
    assert PrefixRouter().choose(request(salt="one", adapter="x"), candidates).candidate == 1


@pytest.mark.parametrize(
    ("paces", "chosen"),
    [((100.0, 300.0), 1), ((300.0, 100.0), 0), ((None, None), 0), ((None, 50.0), 0)],
)
def test_queues_are_compared_by_the_time_that_they_take(
    paces: tuple[float | None, float | None], chosen: int
) -> None:
    candidates = [replica("a", 1000.0, paces[0]), replica("b", 1500.0, paces[1])]
    assert PrefixRouter().choose(request([1]), candidates).candidate == chosen


def test_requests_that_share_a_prefix_meet_before_it_is_cached() -> None:
    router = PrefixRouter()
    first = router.choose(request(), [replica("a"), replica("b")]).candidate
    owed = [0.0, 0.0]
    owed[first] = 100.0
    again = [replica("a", owed[0]), replica("b", owed[1])]
    assert router.choose(request(), again).candidate == first
    router.forget("ab"[first])
    assert router.choose(request(), again).candidate == 1 - first


def test_old_figures_are_trusted_by_few() -> None:
    router = PrefixRouter(seed=3)
    candidates = [
        replica(name, owed, silent=SILENT_SECONDS + 1)
        for name, owed in zip("abc", (0, 1, 2), strict=True)
    ]
    chosen = [router.choose(request([1]), candidates).candidate for _ in range(200)]
    assert set(chosen) == {0, 1}  # the one that owes the most loses every comparison
    assert chosen.count(0) > chosen.count(1)


def test_the_router_keeps_no_prompt() -> None:
    router = PrefixRouter()
    router.choose(request(), [replica("a"), replica("b")])
    kept = msgspec.msgpack.encode([list(part) for part in router._expected.values()])
    tokens = msgspec.msgpack.encode(PROMPT)
    assert len(kept) < len(tokens)
    assert all(len(link) == 16 for part in router._expected.values() for link in part)
