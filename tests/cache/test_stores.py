"""Behavior of every store: it finds entries, evicts old or excess ones, and detects damaged bytes."""

import asyncio
import dataclasses
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from galley.cache.redis_store import RedisStore
from galley.cache.response_cache import open_store
from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import OVERHEAD_BYTES, Bounds, Selection, Store, StoreError
from galley.errors import SettingsError
from tests.cache.entries import entry
from tests.cache.redis_server import RedisServer

WIDE = Bounds(bytes=1 << 24, entries=1000, seconds=3600)
ALL = Selection()

Open = Callable[[Bounds], Store]


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "sqlite":
        return lambda bounds: SqliteStore(tmp_path / "answers.sqlite", bounds)
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda bounds: RedisStore(server.url, bounds, timeout=5.0)


def test_what_is_put_is_found_by_this_process_and_the_next(opened: Open) -> None:
    async def work() -> None:
        store = opened(WIDE)
        await store.put(entry(1))
        await store.put(entry(2, tag="b"))
        [one, two, three] = await store.get([entry(n).key for n in (1, 2, 3)])
        assert one is not None
        assert one.body == entry(1).body
        assert two is not None
        assert two.tag == "b"
        assert three is None
        await store.close()
        again = opened(WIDE)
        [found] = await again.get([entry(2).key])
        assert found is not None
        assert found == two
        await again.close()

    asyncio.run(work())


def test_a_later_answer_replaces_an_earlier_one(opened: Open) -> None:
    async def work() -> None:
        store = opened(WIDE)
        for body in (b"first", b"second"):
            await store.put(entry(1, body=body))
        await store.close()
        store = opened(WIDE)
        [found] = await store.get([entry(1).key])
        assert found is not None
        assert found.body == b"second"
        assert (await store.size()).entries == 1
        await store.close()

    asyncio.run(work())


def test_an_entry_that_has_ended_is_not_found(opened: Open) -> None:
    async def work() -> None:
        store = opened(WIDE)
        await store.put(entry(1, seconds=0.3))
        await store.put(entry(2))
        await asyncio.sleep(0.4)
        assert await store.get([entry(1).key]) == [None]
        await store.close()
        store = opened(WIDE)
        assert [kept.entry.key for kept in await store.find(ALL, 10)] == [entry(2).key]
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("bound", ["entries", "bytes"])
def test_the_least_recently_used_are_evicted(opened: Open, bound: str) -> None:
    size = 1000
    bounds = Bounds(bytes=1 << 30, entries=20, seconds=3600)
    if bound == "bytes":
        bounds = Bounds(bytes=20 * (size + 2 * OVERHEAD_BYTES), entries=10**6, seconds=3600)

    async def work() -> None:
        store = opened(bounds)
        for number in range(15):
            await store.put(entry(number, size=size))
        await store.close()
        store = opened(bounds)
        for _ in range(2):
            assert None not in await store.get([entry(0).key, entry(1).key])
        await asyncio.sleep(0.01)
        for number in range(15, 30):
            await store.put(entry(number, size=size))
        await store.close()
        store = opened(bounds)
        kept = {int.from_bytes(one.entry.key, "big") for one in await store.find(ALL, 1000)}
        assert {0, 1, 29} <= kept
        assert {2, 3, 4} & kept == set()
        held = await store.size()
        assert held.entries == len(kept) <= bounds.entries
        assert held.bytes <= bounds.bytes
        await store.close()

    asyncio.run(work())


def test_an_entry_larger_than_the_store_is_not_kept(opened: Open) -> None:
    async def work() -> None:
        store = opened(Bounds(bytes=2000, entries=10, seconds=60))
        await store.put(entry(1, size=5000))
        assert await store.get([entry(1).key]) == [None]
        await store.close()

    asyncio.run(work())


def test_entries_are_listed_and_removed_by_what_they_are(opened: Open) -> None:
    async def work() -> None:
        store = opened(WIDE)
        await store.put(entry(1, model="a", tenant="x", tag="one"))
        await store.put(entry(2, model="a", tenant="y"))
        await store.put(entry(3, model="b", tenant="x", kind="vector"))
        await store.close()
        store = opened(WIDE)

        async def numbers(selection: Selection) -> set[int]:
            found = await store.find(selection, 10)
            return {int.from_bytes(kept.entry.key, "big") for kept in found}

        assert await numbers(Selection(model="a")) == {1, 2}
        assert await numbers(Selection(tenant="x")) == {1, 3}
        assert await numbers(Selection(tag="one")) == {1}
        assert await numbers(Selection(kind="vector")) == {3}
        assert await numbers(Selection(model="a", tenant="x")) == {1}
        assert await numbers(Selection(keys=(entry(2).key.hex()[:32],))) == {2}
        assert await numbers(Selection(keys=())) == set()
        assert await store.remove(Selection(model="a", tenant="y")) == 1
        assert await numbers(ALL) == {1, 3}
        assert await store.get([entry(2).key]) == [None]
        assert await store.remove(ALL) == 2
        assert (await store.size()).entries == 0
        await store.close()

    asyncio.run(work())


def test_hits_are_counted(opened: Open) -> None:
    async def work() -> None:
        store = opened(WIDE)
        await store.put(entry(1))
        await store.close()
        store = opened(WIDE)
        for _ in range(3):
            await store.get([entry(1).key])
        await store.close()
        store = opened(WIDE)
        [kept] = await store.find(ALL, 10)
        assert kept.hits == 3
        assert kept.used <= time.time()
        await store.close()

    asyncio.run(work())


def test_a_changed_byte_of_a_file_is_a_miss_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"

    async def stored() -> None:
        store = SqliteStore(path, WIDE)
        for number in range(50):
            await store.put(entry(number, size=300))
        await store.close()

    async def wrong() -> int:
        """Look up each entry, and count those that differ from what was stored."""
        count = 0
        store = SqliteStore(path, WIDE)
        for number in range(50):
            try:
                [found] = await store.get([entry(number).key])
            except StoreError:
                continue
            count += found is not None and found.body != entry(number, size=300).body
        await store.close()
        return count

    asyncio.run(stored())
    whole = path.read_bytes()
    for place in range(120, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        for more in ("-wal", "-shm"):
            path.with_name(path.name + more).unlink(missing_ok=True)
        assert asyncio.run(wrong()) == 0, place


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"not a database" * 1000)

    async def work() -> None:
        store = SqliteStore(path, WIDE)
        await store.put(entry(1))
        await store.close()
        store = SqliteStore(path, WIDE)
        assert await store.get([entry(1).key]) != [None]
        await store.close()

    asyncio.run(work())
    assert path.with_name("answers.sqlite.damaged").read_bytes().startswith(b"not a database")


def test_a_damaged_file_that_cannot_be_renamed_is_an_unusable_store(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    in_its_place = tmp_path / "answers.sqlite.damaged"

    async def work() -> None:
        store = SqliteStore(path, WIDE)
        await store.put(entry(1))
        await store.close()
        store = SqliteStore(path, WIDE)
        (in_its_place / "a folder").mkdir(parents=True)
        path.write_bytes(b"not a database" * 10_000)
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be renamed"):
                await store.get([entry(1).key])
        shutil.rmtree(in_its_place)
        assert await store.get([entry(1).key]) == [None]
        await store.close()

    asyncio.run(work())
    assert in_its_place.read_bytes().startswith(b"not a database")


def test_answers_that_replace_others_before_they_are_written_fill_no_room(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path / "answers.sqlite", WIDE)
        # 100 MB in all, of which 1 MB waits for the disk at a time.
        for _ in range(100):
            await store.put(entry(1, size=10**6))
        last = entry(2)
        await store.put(last)
        assert await store.get([last.key]) == [last]
        await store.close()

    asyncio.run(work())


def test_a_read_after_the_end_leaves_the_file_alone(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path / "answers.sqlite", WIDE)
        only = entry(1)
        await store.put(only)
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.get([only.key])
        store = SqliteStore(tmp_path / "answers.sqlite", WIDE)
        assert await store.get([only.key]) == [only]
        await store.close()

    asyncio.run(work())


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path / "answers.sqlite", WIDE)
        await store.close()

    asyncio.run(work())
    assert (tmp_path / "answers.sqlite").stat().st_mode & 0o077 == 0


def test_a_burst_of_requests_shares_the_connections_to_redis(redis_server: RedisServer) -> None:
    async def work() -> None:
        store = RedisStore(redis_server.url, WIDE, timeout=5.0)
        only = entry(1)
        await store.put(only)
        found = await asyncio.gather(*(store.get([only.key]) for _ in range(300)))
        assert found == 300 * [[only]]
        await store.close()

    asyncio.run(work())


def test_a_changed_value_in_redis_is_a_miss(redis_server: RedisServer) -> None:
    async def work() -> None:
        store = RedisStore(redis_server.url, WIDE, timeout=5.0)
        await store.put(entry(1))
        client = redis_server.client()
        [name] = client.keys("*:" + entry(1).key.hex())
        value = client.get(name)
        assert isinstance(value, bytes)
        data = bytearray(value)
        data[-1] ^= 1
        client.set(name, bytes(data))
        assert await store.get([entry(1).key]) == [None]
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("place", ["postgres://host/db", "redis://host:port"])
def test_a_place_that_is_no_store_is_refused(place: str) -> None:
    with pytest.raises(SettingsError, match="response_cache_store"):
        open_store(place, WIDE)


def test_questions_are_followed_in_the_order_in_which_any_process_stored_them(opened: Open) -> None:
    semantic: dict[str, Any] = {"question": "What is it?", "scope": b"s", "vector": b"vv"}

    async def work() -> None:
        writer, reader = opened(WIDE), opened(WIDE)
        assert await reader.follow("", 10) == ([], "", False)
        for number in range(5):
            await writer.put(entry(number, **semantic if number != 2 else {}))
        await writer.close()
        found, place, more = await reader.follow("", 3)
        assert [one.key for one in found] == [entry(number).key for number in (0, 1, 3)]
        assert found[0].question == "What is it?"
        assert found[0].vector == b"vv"
        assert more
        found, place, more = await reader.follow(place, 3)
        assert ([one.key for one in found], more) == ([entry(4).key], False)
        writer = opened(WIDE)
        assert await writer.remove(Selection(keys=(entry(1).key.hex(),))) == 1
        await writer.put(entry(0, **semantic))
        await writer.close()
        found, _, _ = await reader.follow(place, 3)
        assert [one.key for one in found] == [entry(0).key]
        everything, _, _ = await reader.follow("", 10)
        assert entry(1).key not in [one.key for one in everything]
        await reader.close()

    asyncio.run(work())


def test_only_the_latest_questions_are_followed_from_the_beginning(tmp_path: Path) -> None:
    bounds = dataclasses.replace(WIDE, questions=3)

    async def work() -> None:
        store = SqliteStore(tmp_path / "answers.sqlite", bounds)
        for number in range(5):
            await store.put(entry(number, question="What is it?", vector=b"vv"))
        await store.close()
        store = SqliteStore(tmp_path / "answers.sqlite", bounds)
        found, _, more = await store.follow("", 10)
        assert [one.key for one in found] == [entry(number).key for number in (2, 3, 4)]
        assert not more
        await store.close()

    asyncio.run(work())


def test_a_file_of_the_version_without_questions_is_used(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"

    async def work() -> None:
        store = SqliteStore(path, WIDE)
        await store.put(entry(1))
        await store.close()
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("DROP TRIGGER questions_removed")
            base.execute("DROP TABLE questions")
            base.execute("PRAGMA user_version = 1")
        store = SqliteStore(path, WIDE)
        assert await store.get([entry(1).key]) != [None]
        await store.put(entry(2, question="What?", vector=b"v"))
        await store.close()
        store = SqliteStore(path, WIDE)
        found, _, _ = await store.follow("", 10)
        assert [one.key for one in found] == [entry(2).key]
        await store.close()

    asyncio.run(work())
