"""``x-prefiller-host-port`` with prefill servers that answer wrongly, slowly or not at all."""

import asyncio
import http.server
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from galley.cluster.prefill import RemotePrefill
from galley.cluster.share import fleet_of
from galley.errors import SettingsError
from galley.protocols.openai import prefiller
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.prefiller import HEADER, prefilled
from galley.rare_warnings import RareWarnings
from galley.settings.config import Settings
from galley.types import EngineRequest, Generate, SamplingParams
from tests.server.serving import until

WHERE = {
    "do_remote_prefill": True,
    "remote_host": "127.0.0.1",
    "remote_port": 8600,
    "remote_block_ids": [0, 1],
}


class PrefillServer:
    """Answers each request with the same bytes, once it may."""

    def __init__(self) -> None:
        self.body, self.may_answer = b"", threading.Event()
        self.may_answer.set()
        self.received = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                outer.received.set()
                outer.may_answer.wait(10)
                self.wfile.write(outer.body)

            def log_message(self, *_: object) -> None: ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"

    def answers(self, params: object) -> None:
        self.body = b"HTTP/1.0 200 OK\r\n\r\n" + msgspec.json.encode({"kv_transfer_params": params})


@pytest.fixture(autouse=True)
def first_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test log its first warning."""
    monkeypatch.setattr(prefiller, "_warnings", RareWarnings("galley.transfers"))


@pytest.fixture
def server() -> Iterator[PrefillServer]:
    made = PrefillServer()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.may_answer.set()
    made.http.shutdown()
    thread.join()
    made.http.server_close()


async def asking(server: PrefillServer, deadline: float = math.inf) -> CompletionRequest:
    settings = Settings(model="tiny", role="decode", gateway_headers=True)
    served: Any = SimpleNamespace(settings=settings)
    parsed = CompletionRequest(model="tiny", prompt="x")
    return await prefilled({HEADER: server.address}, parsed, served, "/v1/completions", deadline)


def ask(server: PrefillServer, deadline: float = math.inf) -> CompletionRequest:
    return asyncio.run(asking(server, deadline))


def test_a_right_answer_becomes_part_of_the_request(server: PrefillServer) -> None:
    server.answers(WHERE)
    params = ask(server).kv_transfer_params
    assert params is not None
    assert (params.remote_host, params.remote_port) == ("127.0.0.1", 8600)


@pytest.mark.parametrize(
    "params",
    [
        {**WHERE, "remote_host": "192.0.2.7"},
        {**WHERE, "remote_host": "localhost"},
        {**WHERE, "remote_port": None},
        {**WHERE, "remote_port": "8600"},
        {**WHERE, "do_remote_decode": True},
        {"do_remote_decode": True},
        [],
    ],
)
def test_an_answer_that_cannot_be_used_is_no_error_of_the_client(
    params: object, server: PrefillServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers(params)
    assert ask(server).kv_transfer_params is None
    assert "did not compute a prompt" in caplog.text


@pytest.mark.parametrize("body", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 302 F\r\nLocation: /\r\n\r\n"])
def test_servers_that_are_no_prefill_servers_are_ignored(
    body: bytes, server: PrefillServer
) -> None:
    server.body = body
    assert ask(server).kv_transfer_params is None


def test_a_request_with_a_deadline_does_not_wait_longer(server: PrefillServer) -> None:
    server.answers(WHERE)
    server.may_answer.clear()
    assert ask(server, time.monotonic() + 0.1).kv_transfer_params is None
    server.may_answer.set()
    assert ask(server, time.monotonic()).kv_transfer_params is None


def test_a_thread_keeps_its_place_after_its_request_has_ended(
    server: PrefillServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefiller, "_PLACES", threading.BoundedSemaphore(1))
    server.answers(WHERE)
    server.may_answer.clear()

    async def hang_up() -> None:
        task = asyncio.create_task(asking(server))
        async with asyncio.timeout(10):
            while not server.received.is_set():
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(hang_up())
    assert not prefiller._PLACES.acquire(blocking=False)
    server.may_answer.set()
    until(lambda: ask(server).kv_transfer_params is not None)


def test_without_a_place_a_prompt_is_computed_here(
    server: PrefillServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers(WHERE)
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(prefiller, "_PLACES", places)
    with places:
        assert ask(server).kv_transfer_params is None
    assert ask(server).kv_transfer_params is not None


def test_a_role_without_a_token_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(SettingsError, match="cluster_token_file"):
        fleet_of(Settings(model="tiny", role="prefill"))


def test_a_wrong_address_is_named_by_its_setting(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret that all machines have")
    settings = Settings(
        model="tiny", role="decode", prefill_replica=("here",), cluster_token_file=str(token)
    )
    with pytest.raises(SettingsError, match=r"^prefill_replica: 'here' is not HOST:PORT"):
        RemotePrefill(settings, "tiny", max_queue=1)


def test_prompts_at_replicas_that_are_lost_are_not_waited_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret that all machines have")
    where: dict[str, Any] = {"prefill_replica": ("127.0.0.1:1",), "cluster_token_file": str(token)}
    pool = RemotePrefill(Settings(model="tiny", role="decode", **where), "tiny", max_queue=1)

    class Lost:
        """A client whose replica is lost while it computes the prompt."""

        state = "ready"
        ended = False

        def submit_all(self, requests: object, deadline: float) -> list["Lost"]:
            return [self]

        async def __anext__(self) -> None:
            self.state = "recovering"
            await asyncio.sleep(30)

        def cancel(self) -> None:
            self.ended = True

    lost = Lost()
    pool._client = lost  # type: ignore[assignment]
    payload = Generate(prompt=[1] * 600, sampling=SamplingParams(max_tokens=1))

    async def run() -> None:
        async with asyncio.timeout(10):
            assert await pool.compute(EngineRequest(id="r", payload=payload), math.inf) is None

    asyncio.run(run())
    assert lost.ended
