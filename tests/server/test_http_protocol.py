"""HTTP/1.1 between a socket and an ASGI app: framing, order, and errors of the app or the client."""

import asyncio
import gc
import hashlib
import itertools
import json
import random
import re
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import OP_BINARY, OP_CLOSE, Close, Frame

from galley.server import tls
from galley.server.app_host import AppHost
from galley.server.front_door import Admission, FrontDoor
from galley.server.head import Head
from galley.server.http_protocol import HttpProtocol
from galley.server.request_reader import RequestReader
from galley.settings.config import Settings
from tests.cluster.authority import Authority
from tests.thorough import examples

App = Callable[[Any, Any, Any], Awaitable[None]]
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
START = {"type": "http.response.start", "status": 200}
END = {"type": "http.response.body", "body": b""}


async def body_of(receive: Any) -> bytes:
    """Receive a whole body."""
    body: bytes = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            return body


async def answer(send: Any, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({**START, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path, and the request's body."""
    await answer(send, scope["path"].encode() + b" " + await body_of(receive))


@asynccontextmanager
async def serving(app: App, **limits: Any) -> AsyncIterator[Connect]:
    """Serve ``app`` on a socket."""
    settings = Settings(**limits)
    door = FrontDoor(settings, models=1, refused=lambda status: None)
    host = AppHost(app, headers=[("X-Common", "1")], max_message_bytes=2**20)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    encryption = tls.context(settings)
    door.open(listener, lambda admission: HttpProtocol(host, door, admission), encryption)
    client = None
    if encryption is not None:
        client = ssl.create_default_context(cafile=settings.tls_cert)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port, ssl=client)
    finally:
        await door.close(1)
        await host.finished(1)


def exchanged(app: App, data: bytes, *, eof: bool = False, **limits: Any) -> bytes:
    """Return everything a client receives that sends ``data``, until the server closes the connection."""

    async def exchange() -> bytes:
        async with serving(app, **limits) as connect:
            reader, writer = await connect()
            writer.write(data)
            if eof:
                writer.write_eof()
            async with asyncio.timeout(30):
                return await reader.read()

    return asyncio.run(exchange())


def responses(data: bytes, *methods: str) -> list[tuple[h11.Response, bytes]]:
    """Return the responses in ``data``, parsed by a strict client that sent requests with these methods."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(data)
    found: list[tuple[h11.Response, bytes]] = []
    for method in methods:
        if found:
            client.start_next_cycle()
        client.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
        client.send(h11.EndOfMessage())
        response, body = client.next_event(), b""
        assert isinstance(response, h11.Response), response
        while isinstance(part := client.next_event(), h11.Data):
            body += part.data
        assert isinstance(part, h11.EndOfMessage), part
        found.append((response, body))
    return found


def test_a_connection_carries_many_requests() -> None:
    data = GET % b"a" + GET % b"b" + LAST % b"c"
    found = responses(exchanged(echo, data), "GET", "GET", "GET")
    assert [body for _, body in found] == [b"/a ", b"/b ", b"/c "]
    for response, _ in found:
        headers = dict(response.headers)
        assert headers[b"x-common"] == b"1"
        assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", headers[b"date"])
    assert [(b"connection", b"close") in r.headers for r, _ in found] == [False, False, True]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 204, 304, 499])
@pytest.mark.parametrize("length", [True, False])
def test_every_response_ends_where_clients_expect_it(
    method: str, status: int, length: bool
) -> None:
    body = b"" if status in (204, 304) else b"12345"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sized = [(b"content-length", b"%d" % len(body))] if length and body else []
        await send({**START, "status": status, "headers": sized})
        for byte in body:
            part = bytes([byte])
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send(END)

    request = b"%b / HTTP/1.1\r\nHost: localhost\r\n\r\n" % method.encode()
    found = responses(exchanged(app, request + LAST % b""), method, "GET")
    assert [response.status_code for response, _ in found] == [status, status]
    assert [part for _, part in found] == [b"" if method == "HEAD" else body, body]


def test_a_response_in_http_1_0_ends_with_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await send({"type": "http.response.body", "body": b"2"})

    head, _, body = exchanged(app, b"GET / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert body == b"12"
    assert b"transfer-encoding" not in head


def test_an_expected_continue_is_sent_when_the_body_is_read() -> None:
    head = (
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
        b"Connection: close\r\n\r\n"
    )

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no")

    async def exchange(app: App) -> list[bytes]:
        async with serving(app) as connect:
            reader, writer = await connect()
            writer.write(head)
            first = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"{}")
            return [first, await reader.read()]

    first, rest = asyncio.run(exchange(echo))
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert rest.endswith(b"/x {}")
    first, rest = asyncio.run(exchange(refuse))
    assert first.startswith(b"HTTP/1.1 200 ")
    assert rest == b"no"


def test_a_half_closed_connection_gets_all_its_responses() -> None:
    found = responses(exchanged(echo, GET % b"a" + GET % b"b", eof=True), "GET", "GET")
    assert [body for _, body in found] == [b"/a ", b"/b "]


def test_too_many_pipelined_requests_are_refused() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    received = exchanged(slow, GET % b"" * 10)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"More than 8 requests are waiting" in received


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://localhost", "/"),
        (b"http://localhost/a%20b?c", "/a b"),
        (b"/%ff", "/\ufffd"),
        (b"*", "*"),
    ],
)
def test_the_path_of_a_target(target: bytes, path: str) -> None:
    request = b"OPTIONS %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target
    assert exchanged(echo, request).decode().endswith(f"\r\n\r\n{path} ")


async def crash(scope: Any, receive: Any, send: Any) -> None:
    """Fail."""
    raise ValueError("secret")


async def give_up(scope: Any, receive: Any, send: Any) -> None:
    """Return without a response."""


async def split_response(scope: Any, receive: Any, send: Any) -> None:
    """Send a header that would be split in two."""
    await answer(send, b"", (b"x-evil", b"a\r\nset-cookie: b"))


async def answer_twice(scope: Any, receive: Any, send: Any) -> None:
    """Send the body first."""
    await send(END)


@pytest.mark.parametrize("app", [crash, give_up, split_response, answer_twice])
def test_an_app_that_fails_is_a_500(app: App) -> None:
    received = exchanged(app, GET % b"")
    [(response, body)] = responses(received, "GET")
    assert response.status_code == 500
    assert json.loads(body)["error"]["type"] == "internal_error"
    assert b"secret" not in received
    assert b"set-cookie" not in received


def test_an_app_that_fails_after_its_response_sends_no_other() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        if scope["path"] == "/a":
            raise ValueError

    async def exchange() -> bytes:
        async with serving(app) as connect:
            reader, writer = await connect()
            writer.write(GET % b"a")
            first = await reader.readuntil(b"/a ")
            writer.write(LAST % b"b")
            return first + await reader.read()

    found = responses(asyncio.run(exchange()), "GET", "GET")
    assert [(response.status_code, body) for response, body in found] == [
        (200, b"/a "),
        (200, b"/b "),
    ]


def test_an_empty_line_after_a_large_body_is_ignored() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = len(await body_of(receive))
        await answer(send, b"%b %d" % (scope["path"].encode(), size))

    async def exchange() -> bytes:
        async with serving(app) as connect:
            reader, writer = await connect()
            size = 2**20
            writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
            writer.write(b"x" * size)
            first = await reader.readuntil(b"/a %d" % size)
            writer.write(b"\r\n")
            await asyncio.sleep(0.1)
            writer.write(LAST % b"b")
            return first + await reader.read()

    [_, (response, body)] = responses(asyncio.run(exchange()), "POST", "GET")
    assert (response.status_code, body) == (200, b"/b 0")


def test_messages_that_do_not_wait_for_the_handshake_are_no_headers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        size = len((await receive())["bytes"])
        await send({"type": "websocket.send", "text": f"{size} bytes"})
        await send({"type": "websocket.close"})

    async def exchange() -> bytes:
        async with serving(app) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n")
            await asyncio.sleep(0.1)
            writer.write(b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n")
            key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            frame = Frame(OP_BINARY, bytes(2**16)).serialize(mask=True)
            writer.write(key + frame)
            async with asyncio.timeout(10):
                received = await reader.readuntil(b"65536 bytes")
            writer.write(Frame(OP_CLOSE, Close(1000, "").serialize()).serialize(mask=True))
            return received + await reader.read()

    assert asyncio.run(exchange()).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("sent", [b"123", b"12345"])
def test_a_body_of_another_length_is_not_a_whole_response(sent: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": sent[:2], "more_body": True})
        await send({"type": "http.response.body", "body": sent[2:]})

    with pytest.raises((ConnectionError, h11.RemoteProtocolError, AssertionError)):
        responses(exchanged(app, GET % b""), "GET")


def test_a_response_before_the_body_is_read_to_its_end() -> None:
    """The connection is not reset while the client is still sending an unwanted body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no thanks", (b"connection", b"close"))

    body = b"x" * 2**22
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1)
    [(_, received)] = responses(exchanged(app, head + body), "GET")
    assert received == b"no thanks"


def test_an_app_waits_for_a_client_that_does_not_read() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send(START)
        for _ in range(1000):
            part = {"type": "http.response.body", "body": b"x" * 2**16, "more_body": True}
            await send(part)
            sent += 1
        await send(END)

    async def exchange() -> int:
        async with serving(app) as connect:
            reader, writer = await connect()
            writer.write(LAST % b"")
            waiting = -1
            while waiting < sent or not sent:
                waiting = sent
                await asyncio.sleep(0.2)
            assert len(await reader.read()) > 1000 * 2**16
            return waiting

    assert 0 < asyncio.run(exchange()) < 500


def test_a_body_that_is_not_received_is_not_read() -> None:
    received = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await received.wait()
        await answer(send, b"%d" % len(await body_of(receive)))

    async def exchange() -> bytes:
        async with serving(app) as connect:
            reader, writer = await connect()
            size = 2**25
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
            await asyncio.sleep(0.2)
            unread = writer.transport.get_write_buffer_size()
            assert unread > size // 2, unread
            received.set()
            return await reader.read()

    assert asyncio.run(exchange()).endswith(b"\r\n\r\n%d" % 2**25)


FILL = 2**21


async def filled_body(receive: Any, size: int) -> bytes:
    """Receive a body into a buffer, once its first part has come."""
    buffer, at, filling = bytearray(size), 0, False
    while True:
        message = await receive()
        part = message["body"]
        assert not (filling and part)
        buffer[at : at + len(part)] = part
        at += len(part) + message.get("filled", 0)
        if not message["more_body"]:
            return bytes(buffer[:at])
        if not filling:
            filling = message["fill"](memoryview(buffer)[at:])


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_body_is_filled_into_the_apps_buffer(encrypted: bool, tmp_path: Path) -> None:
    """Requests follow on the connection, also after an answer before the body's end."""
    files = Authority(tmp_path, "own").files(tmp_path / "token")
    limits = {"tls_cert": files["cluster_cert"], "tls_key": files["cluster_key"]}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/early":
            first = await receive()
            assert first["fill"](memoryview(bytearray(FILL))[len(first["body"]) :])
            await receive()
            await answer(send, b"early")
        elif scope["method"] == "POST":
            await answer(send, hashlib.sha256(await filled_body(receive, FILL)).digest())
        else:
            await echo(scope, receive, send)

    data = random.Random(0).randbytes(FILL)
    head = b"POST /%b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def exchange() -> bytes:
        async with serving(app, **(limits if encrypted else {})) as connect:
            reader, writer = await connect()
            for path in (b"a", b"early", b"b"):
                writer.write(head % (path, FILL))
                for start in range(0, FILL, FILL // 4):
                    writer.write(data[start : start + FILL // 4])
                    await writer.drain()
                    await asyncio.sleep(0.02)
                writer.write(GET % b"next")
            writer.write(LAST % b"last")
            async with asyncio.timeout(30):
                return await reader.read()

    methods = ["POST", "GET"] * 3 + ["GET"]
    found = [body for _, body in responses(asyncio.run(exchange()), *methods)]
    digest = hashlib.sha256(data).digest()
    assert found == [digest, b"/next ", b"early", b"/next ", digest, b"/next ", b"/last "]


class Requests:
    """Collects the events of a reader."""

    def __init__(self) -> None:
        self.found: list[tuple[Head, bytes, bool]] = []
        self.body = b""

    def request_began(self) -> None:
        """Nothing."""

    def request_head(self, head: Head, *, keep_alive: bool) -> None:
        """Begin."""
        self.head, self.keep_alive, self.body = head, keep_alive, b""

    def request_body(self, data: bytes) -> None:
        """Add."""
        self.body += data

    def request_ended(self) -> None:
        """Keep."""
        self.found.append((self.head, self.body, self.keep_alive))

    def websocket_head(self, head: Head, rest: bytes) -> None:
        """Keep."""
        self.found.append((head, rest, False))


CHUNKS = b"3;a=b\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: x\r\n\r\n"
LARGE = bytes(range(250)) * 800
STREAM = (
    GET % b"first?x=%20"
    + b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345"
    + b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + LARGE
    + b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS
    + b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"
    + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_requests_do_not_depend_on_how_they_arrive(cuts: list[int]) -> None:
    requests = Requests()
    reader = RequestReader(requests, Settings(), websockets=True)
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        if end > start:
            reader.feed(STREAM[start:end])
    assert [body for _, body, _ in requests.found] == [b"", b"12345", LARGE, b"abcd", b"{}", b""]
    assert [head.target for head, _, _ in requests.found] == [b"/first?x=%20", *[b"/"] * 5]
    assert [kept for _, _, kept in requests.found] == [True] * 5 + [False]


def test_a_closed_connection_is_freed_without_a_garbage_collection() -> None:
    """Cycles would pile up until the collector has searched everything that is alive."""

    async def run() -> None:
        alive: list[weakref.ref[HttpProtocol]] = []
        door = FrontDoor(Settings(), models=1, refused=lambda status: None)
        host = AppHost(echo, headers=[], max_message_bytes=2**20)

        def connect(admission: Admission) -> HttpProtocol:
            protocol = HttpProtocol(host, door, admission)
            alive.append(weakref.ref(protocol))
            return protocol

        listener = socket.create_server(("127.0.0.1", 0))
        door.open(listener, connect)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(GET % b"x")
        await reader.readuntil(b"/x ")
        writer.close()
        async with asyncio.timeout(30):
            while door.connections:
                await asyncio.sleep(0.001)
        await host.finished(1)
        await asyncio.sleep(0)
        [protocol] = alive
        assert protocol() is None
        await door.close(1)

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
