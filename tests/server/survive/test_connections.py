"""Many idle connections, and many streams of which half are cut."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults.connections import allow_open_files, run

from tests.server.conftest import CONTEXT
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_connections")

IDLE, STREAMS = 1500, 100


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that inherits the raised limit of open files, which this process needs, too."""
    if not allow_open_files(IDLE + STREAMS):
        pytest.skip("the limit on open files is too low")
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(model, log, kv_cache_tokens=4 * CONTEXT, threads=1, max_queue=STREAMS) as running:
        yield running


def test_idle_connections_and_cut_streams_affect_no_other_request(server: Server) -> None:
    load = run(
        server.url,
        server.process.pid,
        idle=IDLE,
        streams=STREAMS,
        seconds=5.0,
        warm_up=1.0,
        seed=1,
    )
    result = asyncio.run(load)
    assert result.failed == []
    assert result.cut > 0
    assert result.complete > 0
    assert result.leaked_blocks == 0
    assert result.idle > 0.9 * IDLE
    assert result.health_s < 5
