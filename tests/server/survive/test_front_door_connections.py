"""Connections beyond the limits of the server or of file descriptors, and how a drain treats them."""

import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.conftest import CONTEXT
from tests.server.raw import Raw
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_front_door_connections")

OTHERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a low limit of open files, which leaves room for 48 connections."""
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model,
        log,
        open_files=160,
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        header_timeout=20,
        max_connections_per_address=30,
    ) as running:
        yield running


def test_more_connections_than_descriptors_are_refused(server: Server) -> None:
    lines = len(server.log.splitlines())
    with ExitStack() as stack:
        for number in range(240):
            last = stack.enter_context(Raw(server, source=OTHERS[number % 3]))
        # Connections are accepted in order: once the last is answered or closed, all have been accepted.
        with suppress(OSError):
            last.send("GET /health HTTP/1.1", "Host: localhost", "Connection: close", "")
        last.rest()
        until(lambda: psutil.Process(server.process.pid).num_fds() < 90)
        assert httpx.get(f"{server.url}/health").status_code == 200
        refused = httpx.get(f"{server.url}/v1/models")
        assert error_of(refused, 503)["code"] == "too_many_connections"
        assert int(refused.headers["retry-after"]) >= 1
        for engine in server.children():
            engine.kill()
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    until(lambda: httpx.get(f"{server.url}/v1/models").status_code == 200)
    assert len(server.log.splitlines()) - lines < 50
    assert "Traceback" not in server.log


def test_connections_of_one_address_are_limited(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(Raw(server, source=OTHERS[0]))
        with Raw(server, source=OTHERS[0]) as further:
            further.send("GET /v1/models HTTP/1.1", "Host: localhost", "")
            assert error_of(further.answer(), 503)["code"] == "too_many_connections"
        assert httpx.get(f"{server.url}/v1/models").status_code == 200


def test_a_websocket_beyond_the_limit_is_refused(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(Raw(server, source=OTHERS[1]))
        with Raw(server, source=OTHERS[1]) as further:
            further.send(
                "GET /v1/realtime HTTP/1.1",
                "Host: localhost",
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
                "",
            )
            error_of(further.answer(), 503)


def test_too_few_descriptors_are_an_error_at_start(model: Path, tmp_path: Path) -> None:
    wanted = Server(model, tmp_path / "log", open_files=160, max_connections=100)
    with pytest.raises(AssertionError, match="ended with 2"), wanted:
        pass
    assert "raise the limit or lower max_connections" in wanted.log


def test_thousands_of_idle_connections_affect_no_other_request(model: Path, tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5000, soft - 300)
    with Server(
        model, tmp_path / "log", kv_cache_tokens=CONTEXT, threads=1, header_timeout=120
    ) as server:
        process = psutil.Process(server.process.pid)
        files, memory = process.num_fds(), process.memory_info().rss
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(Raw(server))
            until(lambda: process.num_fds() >= files + count)
            body = {"model": "tiny", "prompt": "the dog", "max_tokens": 20}
            assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
            assert process.memory_info().rss - memory < count * 20_000
        until(lambda: process.num_fds() <= files + 1)


def test_a_drain_does_not_wait_for_bodies(model: Path, tmp_path: Path) -> None:
    with (
        Server(model, tmp_path / "log", kv_cache_tokens=CONTEXT, threads=1) as server,
        Raw(server) as client,
        Raw(server) as upload,
    ):
        client.post("Content-Length: 1000").send(body=b'{"model": ')
        upload.send(
            "POST /v1/audio/transcriptions HTTP/1.1",
            "Host: localhost",
            "Content-Type: multipart/form-data; boundary=b",
            "Content-Length: 1000",
            "",
        )
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        refused = client.answer()
        assert error_of(refused, 503)["code"] == "draining"
        assert int(refused.headers["retry-after"]) >= 1
        assert server.process.wait(8) == 0
