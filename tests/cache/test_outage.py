"""A missing, slow or full Redis costs hits, and nothing else; the log reports it once."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from galley.cache.redis_store import RedisStore
from galley.cache.response_cache import ResponseCache
from galley.cache.store import Bounds
from tests.cache.entries import entry
from tests.cache.redis_server import PROGRAM, RedisServer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")

WIDE = Bounds(bytes=1 << 30, entries=1000, seconds=3600)


def cache_of(server: RedisServer) -> ResponseCache:
    return ResponseCache(RedisStore(server.url, WIDE, timeout=0.5), WIDE)


async def stored(cache: ResponseCache, number: int, size: int = 100) -> None:
    done = asyncio.Event()
    cache.put(entry(number, size=size), then=done.set)
    await done.wait()


async def until_found(cache: ResponseCache, number: int) -> None:
    async with asyncio.timeout(60):
        while (await cache.get([entry(number).key])) == [None]:
            await stored(cache, number)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["slow", "gone"])
def test_without_redis_nothing_is_found_and_it_is_logged_once(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(server: RedisServer) -> None:
        cache = cache_of(server)
        await until_found(cache, 1)
        caplog.clear()
        if how == "slow":
            server.pause()
        else:
            server.process.kill()
            server.process.wait()
        for _ in range(20):
            assert await cache.get([entry(1).key]) == [None]
        assert cache.failed_reads == 20
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "cannot be read" in caplog.text
        if how == "slow":
            server.resume()
            await until_found(cache, 1)
            assert "is read again" in caplog.text
        await cache.close()

    with caplog.at_level(logging.WARNING, "galley.cache"), RedisServer(tmp_path) as server:
        asyncio.run(work(server))


def test_a_full_redis_still_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: RedisServer) -> None:
        cache = cache_of(server)
        await until_found(cache, 1)
        for number in range(2, 100):
            data = entry(number, body=os.urandom(1 << 20))
            done = asyncio.Event()
            cache.put(data, then=done.set)
            await done.wait()
        assert cache.failed_writes > 0
        assert "cannot be written" in caplog.text
        assert await cache.get([entry(1).key]) != [None]
        await cache.close()

    limits = ("--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    with caplog.at_level(logging.WARNING, "galley.cache"), RedisServer(tmp_path, *limits) as server:
        asyncio.run(work(server))
