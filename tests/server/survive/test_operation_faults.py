"""Engines that stop, hang or die during start-up, and memory that runs out."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import CONTEXT
from tests.server.containers import memory_limit
from tests.server.neighbor import Neighbor, alone, text_of
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_operation_faults")

MIB = 2**20
BALLAST = "import sys; b = bytearray(int(sys.argv[1])); b[::4096] = b[::4096]; input()"
LONG = {"model": "tiny", "prompt": "the cat", "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short engine timeouts."""
    log = tmp_path_factory.mktemp("server") / "log"
    settings = {"stall_seconds": 0.5, "step_timeout": 4.0, "threads": 1}
    with Server(model, log, kv_cache_tokens=4 * CONTEXT, **settings) as running:  # type: ignore[arg-type]
        yield running


def ready(server: Server) -> tuple[int, str]:
    answer = httpx.get(f"{server.url}/ready")
    return answer.status_code, answer.json()["status"]


def test_a_stopped_engine_is_not_ready_and_continues_later(server: Server) -> None:
    [engine] = server.children()
    with server.client() as client:
        expected = client.post("/v1/completions", json=LONG | {"temperature": 0}).json()
        body = LONG | {"temperature": 0, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            data = [next(lines)]
            engine.send_signal(signal.SIGSTOP)
            until(lambda: ready(server) == (503, "stalled"))
            assert client.get("/health").status_code == 200
            engine.send_signal(signal.SIGCONT)
            until(lambda: ready(server) == (200, "ready"))
            data += [line for line in lines if line]
    data = [line.removeprefix("data: ") for line in data]
    assert data.pop() == "[DONE]"
    assert text_of(data) == expected["choices"][0]["text"]
    assert server.metrics()["galley_engine_restarts_total"] == 0


def test_an_engine_that_hangs_is_replaced_and_its_streams_continue(server: Server) -> None:
    [engine] = server.children()
    body = LONG | {"temperature": 0}
    with server.client() as client:
        expected = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            lines = stream.iter_lines()
            data = [next(lines)]
            engine.send_signal(signal.SIGSTOP)
            until(lambda: not engine.is_running())
            data += [line for line in lines if line]
    data = [line.removeprefix("data: ") for line in data]
    assert data.pop() == "[DONE]"
    assert text_of(data) == expected
    assert "the engine exceeded --step-timeout" in server.log
    assert server.metrics()["galley_engine_restarts_total"] == 1
    assert ready(server) == (200, "ready")


def test_memory_near_the_limit_of_the_container_is_refused(model: Path, tmp_path: Path) -> None:
    """Another process takes nearly all memory: running work continues, new work is refused."""
    limit = 1500 * MIB
    log = tmp_path / "log"
    settings = {"kv_cache_tokens": 4 * CONTEXT, "threads": 1}
    with (
        memory_limit(limit) as admit,
        Server(model, log, memory_limit_fraction=0.7, **settings) as server,  # type: ignore[arg-type]
    ):
        for process in server.processes():
            admit(process.pid)
        admit(server.process.pid)
        with server.client() as client:
            text = alone(client)
            with Neighbor(server, text):
                ballast = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        f"b = bytearray({8 * limit // 10}); b[::4096] = b[::4096]; input()",
                    ],
                    stdin=subprocess.PIPE,
                    preexec_fn=lambda: admit(0),
                )
                try:
                    refused = until(lambda: _refusal(client))
                    assert refused is not None
                    assert error_of(refused, 503)["code"] == "memory_pressure"
                    assert int(refused.headers["Retry-After"]) > 0
                finally:
                    ballast.kill()
                    ballast.wait()
            until(lambda: _refusal(client) is None)
            assert alone(client) == text
            metrics = server.metrics()
            assert metrics["galley_memory_limit_bytes"] == limit
            assert metrics["galley_engine_restarts_total"] == 0


def _refusal(client: httpx.Client) -> httpx.Response | None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    answer = client.post("/v1/completions", json=body)
    return answer if answer.status_code != 200 else None
