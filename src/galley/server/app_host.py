"""The ASGI app as connections see it: its tasks, and what all of its responses have in common."""

import asyncio
import importlib.util
import re
import secrets
import time
from collections.abc import Coroutine, Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from galley.protocols.common.errors import ApiError, envelope
from galley.protocols.http.errors import error_response
from galley.server.drain import PROBES

Header = tuple[bytes, bytes]

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

_LINES: Final = re.compile(rb"(?:[\w!#$%&'*+.^`|~-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*", re.ASCII)
"""Header lines (RFC 9110, section 5.5). A value with a line end would add headers, or a response."""


_READ_BYTES: Final = 256 << 10
"""The most bytes that a connection reads at a time."""


class AppHost:
    """Runs an ASGI app for all connections, and writes the heads of responses.

    Attributes:
        app: the app.
        websockets: whether it gets WebSockets; they need the package ``websockets``.
        max_message_bytes: size of the largest message that a WebSocket accepts.
        read_buffer: where connections read, one after another.
    """

    def __init__(
        self, app: ASGIApp, *, headers: Sequence[tuple[str, str]], max_message_bytes: int
    ) -> None:
        """Create the host; ``headers`` are those of every response."""
        self.app = app
        self.websockets = _installed("websockets")
        self.max_message_bytes = max_message_bytes
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._headers = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in headers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._second = 0
        self._common = b""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, the app's answer to one request, as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self, seconds: float) -> None:
        """Wait until no task is running, for this many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def head(self, status: int, headers: Iterable[Header]) -> bytes:
        """Return the head of a response.

        Args:
            status: the status code.
            headers: name and value of each header, in addition to those of every response.

        Raises:
            ValueError: a name or a value contains a character that it must not.
        """
        written = [b"%b: %b\r\n" % header for header in headers]
        lines = b"".join(written)
        if not _LINES.fullmatch(lines) or lines.count(b"\n") != len(written):
            raise ValueError(f"a header of the response is not valid: {lines!r}")
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._common = b"date: %b\r\n" % formatdate(now, usegmt=True).encode() + self._headers
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return b"%b%b%b\r\n" % (line, self._common, lines)

    def error(self, error: ApiError) -> bytes:
        """Return a whole response that reports ``error``, after which the connection is closed."""
        body = msgspec.json.encode(envelope(error))
        headers = [
            *((name.lower().encode(), value.encode()) for name, value in error.headers.items()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", secrets.token_hex(12).encode()),
            (b"connection", b"close"),
        ]
        return self.head(error.status, headers) + body


def only_probes(app: ASGIApp) -> ASGIApp:
    """Return the app for a connection beyond the limits, which answers probes alone."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        error = ApiError(
            503,
            "The server has reached its maximum of connections (--max-connections, "
            "--max-connections-per-address)",
            type="service_unavailable",
            code="too_many_connections",
            headers={"Retry-After": "1", "Connection": "close"},
        )
        await error_response(error)(scope, receive, send)

    return answer


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a custom finder may raise this at once
        return False
