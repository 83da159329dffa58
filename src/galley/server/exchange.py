"""One request and its response, as an ASGI app receives and sends them."""

import asyncio
import logging
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message, Scope

from galley.errors import Draining
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.protocols.http.sse import Watched
from galley.server.app_host import AppHost

log = logging.getLogger("galley.server")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_MOST_UNREAD: Final = 64 * 1024
"""Bytes of a body kept for an app that does not receive them."""

_WITHOUT_BODY: Final = (204, 304)


class Connection(Protocol):
    """The interface that an exchange needs from its connection."""

    host: AppHost
    transport: asyncio.Transport
    writable: asyncio.Event

    def body_received(self) -> None:
        """Handle that the app received all of the body that had arrived."""

    def fill(self, exchange: "Exchange", buffer: memoryview) -> bool:
        """Receive what is left of an exchange's body into a buffer; return whether that is possible."""

    def answered(self, exchange: "Exchange") -> None:
        """Handle the end of a response that has been written."""

    def refuse(self, error: Exception) -> None:
        """Answer with an error instead of the app, then close."""


class Exchange(Watched):
    """One request and its response.

    Attributes:
        scope: the request's ASGI scope.
        keep_alive: another request may follow on the connection.
        started: the app has sent the head of its response.
        complete: the app has sent all of its response.
        chunked: the response has no length: it is sent in chunks.
        gone: the client has gone, or the request was refused: nothing more is sent.
        is_full: as much of the body waits for the app as is kept.
    """

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool) -> None:
        """Create the exchange of a request whose head has arrived."""
        self.scope = scope
        self.keep_alive = keep_alive
        self.started = self.complete = self.chunked = self.gone = self.is_full = False
        self._connection = connection
        self._expects_continue = _expects_continue(scope)
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._more_body = True
        self._filled = 0
        self._changed = asyncio.Event()
        self._head = b""
        self._left: int | None = None

    # Called by the connection.

    def add_body(self, data: bytes) -> None:
        """Add a part of the request's body; after a complete response it is discarded."""
        if self.complete:
            return
        self._body.append(data)
        self._body_bytes += len(data)
        self.is_full = self._body_bytes > _MOST_UNREAD
        self._changed.set()

    def add_filled(self, size: int) -> None:
        """Count bytes of the body that have arrived in the app's buffer."""
        self._filled += size
        self._changed.set()

    def end_body(self) -> None:
        """Record that the request's body is complete."""
        self._more_body = False
        self._changed.set()

    def abandon(self) -> None:
        """Let the app see a disconnect, and send nothing more."""
        self.gone = True
        self._changed.set()
        if self.on_gone is not None:
            self.on_gone()

    async def run(self, app: ASGIApp) -> None:
        """Have ``app`` answer the request."""
        try:
            await app(self.scope, self.receive, self.send)
            if not self.complete and not self.gone:
                raise RuntimeError("the app returned before its response was complete")
        except asyncio.CancelledError:
            self._fail(Draining("The server is shutting down", retry_after=RETRY_SECONDS))
            raise
        except Exception as error:
            log.exception("a request failed")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Refuse the request, unless its answer is complete or no longer awaited."""
        if not self.complete and not self.gone:
            self._connection.refuse(error)

    # Called by the app.

    def fill(self, buffer: memoryview) -> bool:
        """Have the rest of the body written into ``buffer``, which has its length, if that is possible.

        The app has to call it before it waits for anything else. Messages then have a number of bytes that
        have arrived there, ``filled``, instead of a body.
        """
        return not (self.gone or self.complete) and self._connection.fill(self, buffer)

    async def receive(self) -> Message:
        """Return the next part of the body, or later a disconnect.

        With a part that is not the last one, the message has :meth:`fill`, which is not in ASGI.
        """
        connection = self._connection
        if self._expects_continue and not self.started:
            self._expects_continue = False
            if not connection.transport.is_closing():
                connection.transport.write(CONTINUE)
        if not self.gone and not self.complete:
            await self._changed.wait()
            self._changed.clear()
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        body, filled = b"".join(self._body), self._filled
        self._body.clear()
        self._filled = 0
        self._body_bytes = 0
        if self.is_full:
            self.is_full = False
            connection.body_received()
        message: Message = {"type": "http.request", "body": body, "more_body": self._more_body}
        if self._more_body or filled:
            message.update(fill=self.fill, filled=filled)
        return message

    async def send(self, message: Message) -> None:
        """Send the head or a part of the body, waiting while the client reads slowly.

        Raises:
            RuntimeError: the message does not follow those before.
            ValueError: a header is not valid.
        """
        if not self._connection.writable.is_set():
            await self._connection.writable.wait()
        if self.gone:
            return
        expected = "http.response.body" if self.started else "http.response.start"
        if message["type"] != expected or self.complete:
            expected = "nothing" if self.complete else expected
            raise RuntimeError(f"the app sent {message['type']} instead of {expected}")
        if not self.started:
            self._start(message["status"], message.get("headers", ()))
        else:
            self._continue(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Any) -> None:
        """Write the head, or keep it for the body where that follows at once."""
        kept: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":
                self.keep_alive &= b"close" not in value.lower()
                continue
            kept.append((name, value))
        if self.scope["method"] == "HEAD" or status in _WITHOUT_BODY:
            self._left = 0
        elif self._left is None and self.scope["http_version"] == "1.1":
            self.chunked = True
            kept.append((b"transfer-encoding", b"chunked"))
        elif self._left is None:  # HTTP/1.0: the body ends with the connection
            self.keep_alive = False
        if not self.keep_alive:
            kept.append((b"connection", b"close"))
        self._head = self._connection.host.head(status, kept)
        self.started = True
        if self._left is None:
            self._write(b"")

    def _continue(self, body: bytes, *, more: bool) -> None:
        """Write a part of the body, and end the response unless there is ``more``."""
        if self.scope["method"] == "HEAD":
            body = b""
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the response's Content-Length is not that of its body")
        elif self.chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        self._write(body)
        if not more:
            self.complete = True
            self._body.clear()
            self.is_full = False
            self._changed.set()
            self._connection.answered(self)

    def _write(self, data: bytes) -> None:
        if self._head:
            self._head, data = b"", self._head + data
        if data:
            self._connection.transport.write(data)


def _expects_continue(scope: Scope) -> bool:
    return scope["http_version"] == "1.1" and any(
        name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
    )
