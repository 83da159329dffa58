"""A lightweight HTTP/1.1 client, so that it does not limit or delay what it measures.

Connections are kept and reused. A reader gets a response's bytes as they arrive, with the arrival time.
"""

import asyncio
import json
import ssl
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import httptools

from galley.errors import GalleyError, SettingsError, shown

_PORTS: Final = {"http": 80, "https": 443}


class CallFailed(GalleyError):
    """No complete response. ``kind`` is ``connect``, ``connection lost``, ``no HTTP`` or ``timeout``."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class Reader(Protocol):
    """A consumer of one response."""

    def begun(self, status: int) -> None:
        """Handle the head of the response."""

    def received(self, data: bytes, now: float) -> None:
        """Handle a part of the body that arrived at ``now``, by the event loop's clock."""


class Client:
    """A pool of connections to one server, which grows to the number of concurrent requests."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        """Create the client without connecting yet.

        Args:
            url: of the server; its path is prepended to each request's, and its ``/v1`` is not needed.
            api_key: sent as bearer token.
            timeout: seconds for one request, connecting included.

        Raises:
            SettingsError: the URL is not an HTTP URL.
        """
        try:
            place = urlsplit(url)
            host, port = place.hostname, place.port
        except ValueError:  # an address without its bracket, or no such port
            host = None
        if not host or place.scheme not in _PORTS:
            raise SettingsError(f"{shown(url)} is not a URL such as http://127.0.0.1:8000")
        self._host, self._port = host, port or _PORTS[place.scheme]
        self._ssl = ssl.create_default_context() if place.scheme == "https" else None
        self._prefix = place.path.rstrip("/").removesuffix("/v1")
        headers = {"Host": place.netloc.rpartition("@")[2], "User-Agent": "galley-bench"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._timeout = timeout
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def post(self, path: str, content: bytes, content_type: str, reader: Reader) -> None:
        """Send one request and read its complete response, whatever its status.

        Raises:
            CallFailed: no complete response arrived.
        """
        head = f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
        await self._send("POST", path, head.encode() + content, reader)

    async def json(self, path: str, body: object = None) -> tuple[int, Any]:
        """Send a GET to ``path``, or POST ``body`` to it.

        Returns:
            The status, and the response, None if it is not JSON.

        Raises:
            CallFailed: no complete response arrived.
        """
        if body is not None:
            return await self.posted(path, json.dumps(body).encode(), "application/json")
        reader = _Whole()
        await self._send("GET", path, b"\r\n", reader)
        return reader.status, reader.json()

    async def posted(self, path: str, content: bytes, content_type: str) -> tuple[int, Any]:
        """Send a body to ``path``; return and errors are those of :meth:`json`."""
        reader = _Whole()
        await self.post(path, content, content_type, reader)
        return reader.status, reader.json()

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._open):
            connection.close()

    async def _send(self, method: str, path: str, rest: bytes, reader: Reader) -> None:
        request = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}".encode() + rest
        try:
            async with asyncio.timeout(self._timeout):
                connection = await self._connection()
                try:
                    await connection.exchange(request, reader)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            raise CallFailed("timeout", f"no complete answer within {self._timeout:g} s") from None
        except OSError as error:
            raise CallFailed("connect", str(error)) from error
        if not connection.closed:
            self._idle.append(connection)

    async def _connection(self) -> "_Connection":
        while self._idle:
            if not (connection := self._idle.pop()).closed:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._open), self._host, self._port, ssl=self._ssl
        )
        return connection


class _Whole:
    """Reads a response of moderate size."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def begun(self, status: int) -> None:
        self.status = status

    def received(self, data: bytes, now: float) -> None:
        self.body += data

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class _Connection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self, register: "set[_Connection]") -> None:
        self.closed = False
        self._register = register
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0

    async def exchange(self, request: bytes, reader: Reader) -> None:
        """Write a request; return when its response is complete."""
        if self._transport is None or self.closed:
            raise CallFailed("connection lost", "the server closed it before the request")
        self._parser = httptools.HttpResponseParser(self)
        self._reader = reader
        self._done = self._loop.create_future()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        self._now = self._loop.time()
        if self._done is None or self._done.done():  # data without a pending request
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._done.set_exception(CallFailed("no HTTP", str(error)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._register.discard(self)
        if self._done and not self._done.done():
            self._done.set_exception(
                CallFailed("connection lost", str(exc or "the server closed it"))
            )

    # Called by the parser.

    def on_headers_complete(self) -> None:
        self.closed = not self._parser.should_keep_alive()
        self._reader.begun(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._reader.received(body, self._now)

    def on_message_complete(self) -> None:
        if self._done and not self._done.done():
            self._done.set_result(None)
        if self.closed and self._transport:
            self._transport.close()
