"""A redis-server for the test session, emptied for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.redis_server import PROGRAM, RedisServer


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    folder: Path = tmp_path_factory.mktemp("redis")
    with RedisServer(folder) as server:
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    redis_process.client().flushall()
    return redis_process
