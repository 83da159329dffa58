"""A cheap HTTP client, so that load tests are not limited by the client: bytes, no JSON.

Connections are kept alive and reused. A streamed answer is not parsed: its events are counted, with
their arrival times.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

_EVENT: Final = b"data: {"
_READ_BYTES: Final = 1 << 16
_FINISHED: Final = (b'"finish_reason":"length"', b'"finish_reason":"stop"')


@dataclass
class Answer:
    """One response. Times are seconds on the monotonic clock.

    Attributes:
        status: HTTP status; 0 if the connection ended before there was one.
        sent, ended: when the request was written, and when the response was complete or connection lost.
        events: arrival time of each event; several may have arrived at once.
        whole: whether the response is complete.
        finished: whether a stream reported that the model finished.
        body: the body of a response that is not a stream, or the last bytes of a stream.
        opened: whether a connection was opened for it.
    """

    sent: float
    status: int = 0
    ended: float = 0.0
    events: list[float] = field(default_factory=list)
    whole: bool = False
    finished: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opened: bool = False


class Client:
    """A pool of connections to one server."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        """``headers`` go with every request."""
        place = urlsplit(url)
        assert place.hostname
        assert place.port
        self._place = (place.hostname, place.port)
        given = {"Host": place.netloc, "Content-Type": "application/json", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: dict[str, Any] | bytes, **headers: str) -> Answer:
        """One request and its complete response. Names of ``headers`` are written with underscores."""
        return await (await self.begin(path, body, **headers)).wait()

    async def begin(self, path: str, body: dict[str, Any] | bytes, **headers: str) -> "Call":
        """Send one request."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {path} HTTP/1.1\r\n{self._headers}{more}Content-Length: {len(content)}\r\n\r\n"
        )
        opened = False
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                break
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, *self._place)
            opened = True
        call = Call(connection, head.encode() + content, self._idle)
        call.answer.opened = opened
        return call

    def close(self) -> None:
        """Close the connections that are not in use."""
        for connection in self._idle:
            connection.close()


class Call:
    """A request in flight. ``answer`` grows as events arrive."""

    def __init__(
        self, connection: "_Connection", request: bytes, idle: "list[_Connection]"
    ) -> None:
        self._connection = connection
        self._idle = idle
        self.answer, self._done = connection.ask(request)

    def hang_up(self) -> None:
        """Close the connection, whatever the outcome."""
        self._connection.close()

    async def wait(self) -> Answer:
        """Wait until the answer is complete or the connection is lost."""
        try:
            await self._done
        except asyncio.CancelledError:
            self._connection.close()
            raise
        if self.answer.whole and not self._connection.closed:
            self._idle.append(self._connection)
        return self.answer


class _Connection(asyncio.BufferedProtocol):
    """A connection with one request at a time.

    asyncio's other protocols allocate 256 KiB with every read, which takes longer than the rest.
    """

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer(0.0)
        self._now = 0.0
        self._buffer = bytearray(_READ_BYTES)

    def ask(self, request: bytes) -> tuple[Answer, "asyncio.Future[None]"]:
        """Write a request; return its answer, and a future that is done when the answer has ended."""
        assert self._transport
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer(time.monotonic())
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer, self._done

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._now = time.monotonic()
        try:
            self._parser.feed_data(memoryview(self._buffer)[:nbytes])
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._now = time.monotonic()
        self.closed = True
        self._end()

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self.closed = not self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        count = body.count(_EVENT)
        if count or answer.events:
            answer.events += [self._now] * count
            answer.finished |= any(end in body for end in _FINISHED)
            answer.body = body[-500:]
        else:
            answer.body += body

    def on_message_complete(self) -> None:
        self._answer.whole = True
        self._end()

    def _end(self) -> None:
        self._answer.ended = self._now
        if self._done and not self._done.done():
            self._done.set_result(None)
