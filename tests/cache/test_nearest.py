"""The index of vectors, against a plain computation."""

import asyncio
import random
import tracemalloc

import numpy as np
import pytest

from galley.cache.nearest import Nearest, cosine, packed

WIDTH = 16


def vector(rng: np.random.Generator) -> bytes:
    return packed(rng.standard_normal(WIDTH).astype(np.float32).tobytes())


def test_it_finds_what_a_plain_scan_finds_after_any_changes() -> None:
    rng, choice = np.random.default_rng(1), random.Random(1)
    index = Nearest(most=1000)
    held: dict[bytes, tuple[bytes, bytes]] = {}
    for _ in range(600):
        key, scope = choice.randrange(60).to_bytes(2, "big"), choice.choice([b"a", b"b"])
        if choice.random() < 0.3:
            index.remove(key)
            held.pop(key, None)
        else:
            held[key] = scope, vector(rng)
            index.add(scope, key, held[key][1], key.hex())
    assert len(index) == len(held)
    for scope in (b"a", b"b", b"none"):
        sought = vector(rng)
        least = 0.1
        found = asyncio.run(index.nearest(scope, sought, least=least, most=5))
        plain = sorted(
            (
                (cosine(own, sought), key)
                for key, (other, own) in held.items()
                if other == scope and cosine(own, sought) >= least
            ),
            reverse=True,
        )
        assert [one.key for one in found] == [key for _, key in plain[:5]]
        assert [one.text for one in found] == [key.hex() for _, key in plain[:5]]


def test_the_least_recently_used_make_room() -> None:
    rng = np.random.default_rng(2)
    index = Nearest(most=3)
    vectors = [vector(rng) for _ in range(4)]
    for number in range(3):
        index.add(b"s", bytes([number]), vectors[number], "")
    index.use(bytes([0]))
    index.add(b"s", bytes([3]), vectors[3], "")
    found = asyncio.run(index.nearest(b"s", vectors[0], least=-1.0, most=10))
    assert {one.key for one in found} == {bytes([0]), bytes([2]), bytes([3])}


def test_vectors_of_another_width_are_not_compared() -> None:
    rng = np.random.default_rng(3)
    index = Nearest(most=3)
    index.add(b"s", b"1", vector(rng), "")
    other = packed(np.ones(WIDTH + 1, np.float32).tobytes())
    index.add(b"s", b"2", other, "")
    assert len(index) == 1
    assert asyncio.run(index.nearest(b"s", other, least=-1.0, most=10)) == []


def test_memory_follows_the_number_of_vectors() -> None:
    """Most scopes have one question; a large one may become small while others take its place."""
    vectors = np.random.default_rng(5).standard_normal((1000, 256)).astype(np.float32)
    packs = [packed(own.tobytes()) for own in vectors]
    index = Nearest(most=1000)
    tracemalloc.start()
    for number, own in enumerate(packs):
        index.add(number.to_bytes(2, "big"), number.to_bytes(2, "big"), own, "")
    apart = tracemalloc.get_traced_memory()[0]
    for number, own in enumerate(packs):
        index.add(b"one", number.to_bytes(2, "big"), own, "")
    for number in range(3, 1000):
        index.remove(number.to_bytes(2, "big"))
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert apart < 2 * vectors.nbytes
    assert left < vectors.nbytes / 4
    found = asyncio.run(index.nearest(b"one", packs[2], least=0.9, most=5))
    assert [one.key for one in found] == [(2).to_bytes(2, "big")]


@pytest.mark.parametrize("numbers", [[], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_a_vector_without_a_direction_is_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="zero or not finite"):
        packed(np.array(numbers, np.float32).tobytes())


def test_a_large_scope_may_change_while_a_thread_searches_it() -> None:
    rng = np.random.default_rng(4)
    index = Nearest(most=2000)
    vectors = [packed(rng.standard_normal(1024).astype(np.float32).tobytes()) for _ in range(1100)]
    for number, own in enumerate(vectors):
        index.add(b"s", number.to_bytes(2, "big"), own, str(number))

    async def work() -> None:
        search = asyncio.create_task(index.nearest(b"s", vectors[7], least=0.9, most=5))
        await asyncio.sleep(0)
        assert not search.done()
        index.remove((7).to_bytes(2, "big"))
        assert await search == []
        [found] = await index.nearest(b"s", vectors[1099], least=0.9, most=5)
        assert found.text == "1099"

    asyncio.run(work())
