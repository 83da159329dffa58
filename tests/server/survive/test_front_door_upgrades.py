"""Requests for a protocol upgrade, and clients that misuse an open WebSocket."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import OP_PING, Frame
from websockets.sync.client import connect

from tests.server.conftest import CONTEXT
from tests.server.live_client import LiveClient
from tests.server.raw import Raw, connections, parsed
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_front_door_upgrades")

LIVE = "/v1/realtime?intent=transcription"
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
HANDSHAKE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
TOKENIZE = json.dumps({"model": "tiny", "prompt": "the dog"}).encode()


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with short timeouts for headers and for clients that do not read."""
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"tiny={model}", f"hearing={hearing}", f"tiny.kv_cache_tokens={4 * CONTEXT}"]
    with Server(
        models, log, threads=1, header_timeout=1, send_timeout=1, max_header_bytes=20_000
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        (f"POST {LIVE} HTTP/1.1", HANDSHAKE, 400),
        (f"POST {LIVE} HTTP/1.1", (*HANDSHAKE, KEY), 400),
        ("POST /v1/chat/completions HTTP/1.1", (*HANDSHAKE, "Content-Length: 2"), 400),
        (f"DELETE {LIVE} HTTP/1.1", (*HANDSHAKE, KEY), 400),
        (f"GET {LIVE} HTTP/1.1", HANDSHAKE, 400),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE, KEY, KEY), 400),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE, "Sec-WebSocket-Key: AAAA"), 400),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE, KEY, "Content-Length: 100"), 400),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE, KEY, "Transfer-Encoding: chunked"), 400),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE, KEY, "X: " + "x" * 20_000), 431),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE[:2], KEY), 426),
        (f"GET {LIVE} HTTP/1.1", (*HANDSHAKE[:2], KEY, "Sec-WebSocket-Version: 8"), 426),
        ("CONNECT localhost:443 HTTP/1.1", HANDSHAKE, 501),
    ],
)
def test_a_handshake_that_is_none_is_refused_at_once(
    server: Server, line: str, headers: tuple[str, ...], status: int
) -> None:
    with Raw(server) as client:
        client.send(line, "Host: localhost", *headers, "")
        error_of(client.answer(), status)


def test_a_handshake_after_an_unanswered_request_is_refused(server: Server) -> None:
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    body = json.dumps(fields).encode()
    with Raw(server) as client:
        client.post(f"Content-Length: {len(body)}", path="/v1/completions").send(body=body)
        client.send(f"GET {LIVE} HTTP/1.1", "Host: localhost", *HANDSHAKE, KEY, "")
        error_of(client.answer())


def test_handshakes_without_end_take_no_place(server: Server) -> None:
    before = connections(server)
    clients = [Raw(server) for _ in range(8)]
    for client in clients:
        client.send(f"POST {LIVE} HTTP/1.1", "Host: localhost", *HANDSHAKE)
    for client in clients:
        error_of(client.answer(), 408)
        client.socket.close()
    until(lambda: connections(server) <= before)


def test_a_handshake_may_have_long_headers(server: Server) -> None:
    url = f"ws://127.0.0.1:{server.port}{LIVE}"
    with connect(url, additional_headers={"Cookie": "c" * 9_000}) as client:
        assert json.loads(client.recv())["type"].endswith("session.created")


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.3", "websocket, h2c", "x"])
@pytest.mark.parametrize("how", ["at once", "later", "chunked"])
def test_an_upgrade_to_another_protocol_is_ignored(server: Server, protocol: str, how: str) -> None:
    """curl --http2 and Java's HttpClient send such headers with every request."""
    body = TOKENIZE
    framing = f"Content-Length: {len(body)}"
    if how == "chunked":
        framing = "Transfer-Encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = (
        "POST /tokenize HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {protocol}",
        "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
        "Content-Type: application/json",
        framing,
        "",
    )
    with server.client() as http:
        expected = http.post("/tokenize", content=TOKENIZE).json()
    with Raw(server) as client:
        if how == "later":
            client.send(*head)
            assert httpx.get(f"{server.url}/health").status_code == 200
            client.send(body=body)
        else:
            client.send(*head, body=body)
        client.send("GET /health HTTP/1.1", "Host: localhost", "Connection: close", "")
        received = client.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"200"]
    first = parsed(received)
    size = int(first.headers["content-length"])
    assert json.loads(first.content[:size]) == expected


def test_curl_that_prefers_http_2_is_answered(server: Server) -> None:
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)
    if "HTTP2" not in version.stdout:
        pytest.skip("curl knows no HTTP/2 here")
    command = ["curl", "-sS", "--http2", "-d", TOKENIZE.decode(), f"{server.url}/tokenize"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["count"] > 0


def test_a_body_after_an_upgrade_is_not_a_request(server: Server) -> None:
    body = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Raw(server) as client:
        client.post(
            f"Content-Length: {len(body)}",
            "Connection: close, Upgrade",
            "Upgrade: h2c",
            path="/tokenize",
        )
        client.send(body=body)
        assert re.findall(rb"HTTP/1.1 (\d+)", client.rest()) == [b"400"]


def test_pongs_that_are_not_read_are_bounded(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    with LiveClient(server) as client:  # the first session makes the server import what it needs
        client.until("session.created", "transcription_session.created")
    before, open_ = process.memory_info().rss, connections(server)
    ping = Frame(OP_PING, b"p" * 125).serialize(mask=True)
    with Raw(server, receive_buffer=4096) as raw:
        raw.send(f"GET {LIVE} HTTP/1.1", "Host: localhost", *HANDSHAKE, KEY, "")
        assert raw.send_until_refused(ping * 1000, 1000) < 1000
        assert process.memory_info().rss - before < 32 * 2**20
        until(lambda: connections(server) <= open_)


@pytest.mark.parametrize("frames", [[b"{}"] * 2_000, [b"{", b"}"] * 500], ids=["whole", "parts"])
def test_each_of_many_messages_is_answered(server: Server, frames: list[bytes]) -> None:
    """The messages are too small to be useful, and the neighboring stream continues."""
    with LiveClient(server) as client:
        client.until("session.created", "transcription_session.created")
        messages = frames if b"{}" in frames else [frames[i : i + 2] for i in range(0, 1000, 2)]
        for message in messages:
            client.socket.send(message, text=True)
        for _ in messages:
            assert "type" in client.error()["message"]


def test_a_message_of_a_thousand_parts_is_one(server: Server) -> None:
    with LiveClient(server) as client:
        client.until("session.created", "transcription_session.created")
        text = json.dumps({"type": "x" * 40, "y": "z" * 950}).encode()
        client.socket.send([text[i : i + 1] for i in range(len(text))], text=True)
        assert "x" * 40 in client.error()["message"]
        client.socket.send([b"{", *[b""] * 500, b'"type": "input_audio_buffer.clear"}'], text=True)
        client.until("input_audio_buffer.cleared")


def test_what_comes_behind_a_close_is_ignored(server: Server) -> None:
    before = connections(server)
    with LiveClient(server) as client:
        client.until("session.created", "transcription_session.created")
        client.socket.close()
        with pytest.raises(ConnectionClosed):
            client.socket.send("{}")
    until(lambda: connections(server) <= before)
