"""The wall clock jumps by days while requests with deadlines run."""

import os
import struct
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import CONTEXT
from tests.server.neighbor import Neighbor
from tests.server.serving import Server, events

pytestmark = pytest.mark.xdist_group("server_clock")

SOURCE = Path(__file__).parent.parent / "jumping_clock.c"
DAYS = 86_400
REQUEST = {"model": "tiny", "prompt": "x", "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def jump_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clock") / "ahead"
    path.write_bytes(bytes(8))
    return path


@pytest.fixture(scope="module")
def server(
    model: Path, jump_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose processes read a wall clock that jumps."""
    folder = tmp_path_factory.mktemp("server")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", folder / "clock.so", SOURCE], check=True)
    environ = {"LD_PRELOAD": str(folder / "clock.so"), "JUMP_FILE": str(jump_file)}
    with Server(
        model, folder / "log", environ=environ, threads=1, kv_cache_tokens=4 * CONTEXT
    ) as running:
        yield running


def jump(file: Path, seconds: int) -> None:
    with file.open("r+b", buffering=0) as opened:
        os.pwrite(opened.fileno(), struct.pack("<q", seconds), 0)


def created(http: httpx.Client) -> float:
    answer = http.post("/v1/completions", json=REQUEST | {"max_tokens": 1})
    return float(answer.json()["created"])


def test_a_jump_of_the_clock_changes_no_answer(
    server: Server, http: httpx.Client, jump_file: Path, expected: str
) -> None:
    for days in (10, -10, 4000):
        with (
            Neighbor(server, expected),
            http.stream(
                "POST",
                "/v1/completions",
                json=REQUEST | {"max_tokens": 4000, "stream": True},
                headers={"x-request-timeout": "60"},
            ) as stream,
        ):
            received = events(stream)
            first = [next(received)]
            jump(jump_file, days * DAYS)
            assert abs(created(http) - time.time() - days * DAYS) < 60
            rest = first + list(received)
        assert rest[-1] == "[DONE]"
        assert not any('"error"' in event for event in rest)
    assert server.metrics()["galley_engine_restarts_total"] == 0
    assert http.get("/ready").status_code == 200
