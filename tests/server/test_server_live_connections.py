"""Connections of live audio: refused handshakes, and how a connection ends."""

import json
import signal
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import CheckpointMaker
from tests.missing import broken
from tests.server.live_client import AT_16_KHZ, SILENCE, TEXT, LiveClient, configure
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_realtime")

ENDPOINT = "/v1/realtime"


@pytest.fixture(scope="module")
def server(hearing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(hearing, log, threads=1, max_live_streams=3) as running:
        yield running


def denied(server: Server, query: str = "?intent=transcription", **headers: str) -> tuple[int, Any]:
    """Return status and error of a failed handshake."""
    with pytest.raises(InvalidStatus) as refused, LiveClient(server, query, **headers):
        pass
    response = refused.value.response
    assert response.headers["X-Request-Id"]
    return response.status_code, json.loads(response.body)["error"]


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("?model=whisper-1", 404, "model"),
        ("?intent=conversation", 400, "intent"),
        ("?intent=transcription&voice=alloy", 400, "voice"),
    ],
)
def test_what_the_address_asks_for_is_honored_or_refused(
    query: str, status: int, param: str, server: Server
) -> None:
    found, error = denied(server, query)
    assert (found, error["param"]) == (status, param)


def test_a_page_of_another_site_gets_no_connection(server: Server) -> None:
    assert denied(server, Origin="https://evil.example")[0] == 403
    with LiveClient(server, Origin=f"http://localhost:{server.port}") as client:
        client.until("session.created")
    upgrade = {
        "Host": "evil.example",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    with server.client() as client:
        assert client.get(ENDPOINT, headers=upgrade).status_code == 403


def test_there_are_so_many_streams_and_no_more(server: Server) -> None:
    with LiveClient(server) as one, LiveClient(server) as two, LiveClient(server) as three:
        for each in (one, two, three):
            each.until("session.created")
        status, error = denied(server)
        assert (status, error["code"]) == (429, "queue_full")
    until(lambda: _connects(server))


def _connects(server: Server) -> bool:
    try:
        with LiveClient(server):
            return True
    except InvalidStatus:
        return False


def test_without_a_websocket_the_answer_says_so(server: Server) -> None:
    with server.client() as client:
        answer = client.get(ENDPOINT)
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


def test_a_key_is_needed_where_there_is_one(hearing: Path, tmp_path: Path) -> None:
    with Server(hearing, tmp_path / "log", threads=1, api_key="secret") as server:
        assert denied(server)[0] == 401
        assert denied(server, Authorization="Bearer wrong")[1]["code"] == "invalid_api_key"
        with LiveClient(server, Authorization="Bearer secret") as client:
            client.until("session.created")
    assert "secret" not in server.log


def test_a_text_model_has_no_live_audio(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    with Server(checkpoint("llama"), tmp_path / "log", threads=1) as server:
        status, error = denied(server)
    assert status == 400
    assert "cannot transcribe; it can score, generate" in error["message"]


def test_a_server_whose_extra_is_broken_says_how_to_get_it(hearing: Path, tmp_path: Path) -> None:
    missing = broken(tmp_path, "soxr")
    with Server(hearing, tmp_path / "log", threads=1, environ=missing) as server:
        status, error = denied(server)
    assert status == 501
    assert "pip install 'galley-inference[speech]'" in error["message"]


# How a connection ends.


def test_a_client_that_is_cut_off_leaves_nothing_behind(
    server: Server, call: NDArray[np.float32]
) -> None:
    until(lambda: _connects(server))
    with LiveClient(server) as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        client.append(call[: 8 * 16_000])
        client.until("input_audio_buffer.speech_started")
        client.socket.socket.shutdown(sockets.SHUT_RDWR)
    until(lambda: "finish=cancelled" in server.log)
    running = "galley_requests_running"
    until(lambda: server.metrics()[running] == 0)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_transcribed_seconds_are_counted(server: Server, call: NDArray[np.float32]) -> None:
    name = f"galley_audio_seconds_total{{endpoint={ENDPOINT}}}"
    before = server.metrics().get(name, 0.0)
    with LiveClient(server) as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        client.append(SILENCE)
        client.send("input_audio_buffer.commit")
        client.until(f"{TEXT}completed")
    until(lambda: server.metrics().get(name, 0.0) == pytest.approx(before + 1.0))
    assert "WS /v1/realtime 101" in server.log
    assert "audio_seconds=1.0 turns=1" in server.log


def test_a_drain_finishes_audio_already_received(
    hearing: Path, tmp_path: Path, call: NDArray[np.float32]
) -> None:
    # A busy machine must not close a connection.
    server = Server(hearing, tmp_path / "log", threads=1, drain_seconds=600)
    with server, LiveClient(server) as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        client.append(call[: 5 * 16_000])
        client.until("input_audio_buffer.speech_started")
        server.process.send_signal(signal.SIGTERM)
        assert client.until(f"{TEXT}completed")["transcript"]
        with pytest.raises(ConnectionClosed) as closed:
            client.until("nothing")
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            1001,
            "the server is shutting down",
        )
        assert server.process.wait(30) == 0


def test_a_stream_continues_when_its_engine_dies(
    hearing: Path, tmp_path: Path, call: NDArray[np.float32]
) -> None:
    with Server(hearing, tmp_path / "log", threads=1) as server, LiveClient(server) as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        client.append(call[: 5 * 16_000])
        client.until("input_audio_buffer.speech_started")
        for child in server.children():
            child.kill()
        client.append(call[5 * 16_000 :])
        first, second = (client.until(f"{TEXT}completed") for _ in range(2))
        assert first["transcript"]
        assert second["transcript"]
