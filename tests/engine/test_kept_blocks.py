"""Blocks that a request keeps are evicted after others, for their time and within half of the pool."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from galley.engine.blocks import BlockPool
from galley.engine.kept_blocks import KeptBlocks
from tests.thorough import examples


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def cache(
    pool: BlockPool, name: str, blocks: int, keep: float = 0.0, tenant: str = ""
) -> list[bytes]:
    """Cache a prefix of this many blocks, as a request does, and return the keys."""
    keys = [f"{name}{i}".encode() for i in range(blocks)]
    taken = [pool.take() for _ in keys]
    for key, block in zip(keys, taken, strict=True):
        pool.register(key, block)
    if keep:
        pool.keep(keys, keep, tenant)
    for block in reversed(taken):
        pool.release(block)
    return keys


def found(pool: BlockPool, keys: list[bytes]) -> int:
    return sum(pool.find(key) is not None for key in keys)


def test_others_are_evicted_first_and_the_end_of_the_prefix_before_its_begin() -> None:
    pool = BlockPool(10, Clock())
    session = cache(pool, "session", 4, keep=300)
    cache(pool, "other", 6)
    taken = [pool.take() for _ in range(6)]
    assert found(pool, session) == 4
    taken += [pool.take() for _ in range(2)]  # nothing else is left
    assert [pool.find(key) is not None for key in session] == [True, True, False, False]
    pool.check(dict(Counter(taken)))


def test_a_prefix_is_kept_no_longer_than_its_time() -> None:
    clock = Clock()
    pool = BlockPool(10, clock)
    session = cache(pool, "session", 4, keep=300)
    other = cache(pool, "other", 6)
    clock.now += 301
    taken = [pool.take() for _ in range(4)]
    assert (found(pool, session), found(pool, other)) == (0, 6)
    pool.check(dict(Counter(taken)))


def test_a_block_is_kept_until_the_latest_time_of_its_requests() -> None:
    clock = Clock()
    pool = BlockPool(10, clock)
    session = cache(pool, "session", 4, keep=3600)
    pool.keep(session, 300)
    for key in session:  # a request that keeps nothing uses them, too
        block = pool.find(key)
        assert block is not None
        pool.share(block)
        pool.release(block)
    clock.now += 301
    cache(pool, "other", 6)
    for _ in range(6):
        pool.take()
    assert found(pool, session) == 4


def test_at_most_half_of_the_pool_is_kept() -> None:
    pool = BlockPool(10, Clock())
    first = cache(pool, "first", 4, keep=300)
    second = cache(pool, "second", 4, keep=600)
    cache(pool, "other", 2)
    for _ in range(5):
        pool.take()
    assert found(pool, first) <= 1
    assert found(pool, second) == 4


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "release", "share", "keep", "wait", "forget"]),
            st.integers(0, 7),
            st.sampled_from([1.0, 5.0, 60.0]),
        ),
        max_size=60,
    )
)
def test_blocks_are_conserved_whatever_happens(actions: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    pool = BlockPool(8, clock)
    held: list[int] = []
    for action, number, seconds in actions:
        key = bytes([number])
        if action == "take" and pool.can_take(1):
            held.append(pool.take())
            pool.register(key, held[-1])
        elif action == "release" and held:
            pool.release(held.pop(number % len(held)))
        elif action == "share" and (block := pool.find(key)) is not None:
            pool.share(block)
            held.append(block)
        elif action == "keep":
            pool.keep([key], seconds, tenant=str(number % 3))
        elif action == "wait":
            clock.now += seconds
        elif action == "forget":
            pool.forget([key])
        pool.check(dict(Counter(held)))
    assert pool.can_take(8 - len(set(held)))


def test_a_block_that_is_kept_again_and_again_takes_no_memory() -> None:
    kept = KeptBlocks()
    for until in range(10_000):
        kept.add(1, float(until))
    assert len(kept._all._order) < 100
    assert len(kept._tenants[""]._order) < 100
    assert kept.pop_ended(before=9999.0) is None
    assert kept.pop_of_largest() == 1


def test_the_tenant_that_keeps_the_most_gives_up_blocks_to_others() -> None:
    pool = BlockPool(20, Clock())
    small = cache(pool, "small", 3, keep=60, tenant="small")
    # It keeps longer, and much more, than half of the pool.
    large = cache(pool, "large", 14, keep=3600, tenant="large")
    cache(pool, "other", 3)
    [pool.take() for _ in range(10)]
    assert found(pool, small) == 3
    assert found(pool, large) == 7
    # The last resort is fair as well: each keeps as much as the other.
    [pool.take() for _ in range(4)]
    assert (found(pool, small), found(pool, large)) == (3, 3)


def test_a_prefix_is_kept_for_the_tenant_that_asked_last() -> None:
    kept = KeptBlocks()
    kept.add(1, 10.0, "a")
    kept.add(1, 10.0, "b")
    kept.add(2, 5.0, "b")
    kept.add(3, 1.0, "c")
    assert kept.pop_of_largest() == 2
    kept.discard(1)
    assert kept.pop_of_largest() == 3
    assert kept.pop_of_largest() is None
    assert len(kept) == 0
