"""The search for answers by meaning while a part that it needs cannot be used."""

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from galley.cache.entry import Entry
from galley.cache.gathered_reads import GatheredReads
from galley.cache.guard import Guard
from galley.cache.nearest import packed
from galley.cache.question import Placed
from galley.cache.response_cache import ResponseCache
from galley.cache.semantic import Embedded, Limits, Semantic
from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import Bounds, StoreError
from tests.cache.entries import entry

BOUNDS = Bounds(bytes=1 << 20, entries=100, seconds=60.0)
LIMITS = Limits(threshold=0.9, agreement=0.9)
VECTOR = array("f", [3.0, 4.0]).tobytes()
PLACED = Placed(b"scope", "How are you?", packed(VECTOR))


class Embedder:
    """Has one vector for all texts, unless it is out of order."""

    def __init__(self) -> None:
        self.works = True

    async def embed(self, text: str, *, cut: bool = False) -> Embedded | None:
        if not self.works:
            raise StoreError("no model")
        return Embedded(b"m", VECTOR)


class Outage(SqliteStore):
    """A file that cannot be read for a while."""

    out = False

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        if self.out:
            raise StoreError("no disk")
        return await super().get(keys)


def test_answers_that_cannot_be_compared_are_not_false(tmp_path: Path) -> None:
    async def work() -> None:
        embedder = Embedder()
        cache = ResponseCache(SqliteStore(tmp_path / "answers.sqlite", BOUNDS), BOUNDS)
        semantic = Semantic(cache.read, cache.store, embedder, None, LIMITS)
        assert await semantic.agree("It is red.", "Its colour is red.") is True
        assert await semantic.agree("It costs 3.", "It costs 4.") is False
        embedder.works = False
        assert await semantic.agree("It is red.", "Its colour is red.") is None
        await cache.close()

    asyncio.run(work())


def test_questions_are_found_again_after_an_outage_of_the_store(tmp_path: Path) -> None:
    async def work() -> None:
        store = Outage(tmp_path / "answers.sqlite", BOUNDS)
        cache = ResponseCache(store, BOUNDS)
        semantic = Semantic(cache.read, store, Embedder(), None, LIMITS)
        stored = entry(question=PLACED.text, scope=PLACED.scope, vector=PLACED.vector)
        await store.put(stored)
        semantic.add(stored)
        store.out = True
        assert await semantic.find(PLACED, 60.0) is None
        store.out = False
        cache.reads = Guard("read", 1.0)  # without waiting for the next attempt
        found = await semantic.find(PLACED, 60.0)
        assert found is not None
        assert found.entry == stored
        await cache.close()

    asyncio.run(work())


def test_reads_that_are_under_way_end_when_the_store_is_closed() -> None:
    async def work() -> None:
        began = asyncio.Event()

        async def never(names: Sequence[str]) -> list[bytes | None]:
            began.set()
            await asyncio.Event().wait()
            return [None for _ in names]

        reads = GatheredReads(never)
        waiting = asyncio.create_task(reads.get(["a"]))
        await began.wait()
        await reads.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(work())
