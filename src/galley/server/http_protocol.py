"""HTTP/1.1 on top of uvicorn, with a bound on everything a client can make the server wait for or keep.

Headers are bounded in bytes, number and time; bodies in time and rate, and in the bytes that chunk
extensions and trailers add to them; responses in the time that a client may read none of them. A request
refused here gets the error envelope of the API and, where the client can still read it, a connection that
is closed only after the client has had the time to do so (RFC 9112, section 9.6).
"""

import asyncio
import enum
import math
import secrets
import socket
from typing import Any, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from galley.errors import Draining
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.protocols.common.errors import ApiError, envelope, to_api_error
from galley.server.connection_apps import only_probes, until_closed
from galley.server.front_door import NOT_READ, Admission, FrontDoor
from galley.server.head import Head, fault_of, fault_of_handshake
from galley.server.unsent import Unsent, reset

_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 64 << 20
_MOST_PIPELINED: Final = 8
_FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk sizes, extensions and trailers allowed for each byte of body, beyond the header limit."""

_FIRST_PROBE_SECONDS: Final = 0.01
_LAST_PROBE_SECONDS: Final = 1.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Reading(enum.Enum):
    """The part of a message to which a connection's next byte belongs."""

    HEADERS = enum.auto()
    BODY = enum.auto()
    NOTHING = enum.auto()
    """A request is complete, its response is not."""
    NEXT = enum.auto()
    """The last response is complete; the next request may come."""
    REFUSED = enum.auto()
    """All further bytes are discarded."""


# Looked up several times for each request, and slowly through enum (Python 3.11).
_HEADERS, _BODY, _NOTHING, _NEXT, _REFUSED = _Reading


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection, until it is closed or becomes a WebSocket."""

    def __init__(self, door: FrontDoor, admission: Admission, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._door = door
        self._limits = door.settings
        self._admission = admission
        if admission.surplus:
            self.app = only_probes(self.app)
        self._reading = _HEADERS
        self._deadline = math.inf
        self._fault: ApiError | None = None
        self._head = Head(b"", b"", "", ())
        self._answering: RequestResponseCycle | None = None
        self._half_closed = False
        self._received = 0
        self._discarded = 0
        self._unsent = Unsent(self._limits.send_timeout)
        self._begin_headers()

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self._door.connections.add(self)
        self._admission.abort = transport.abort
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_lost(exc)
        # uvicorn notifies the latest request, which with pipelining is a different one.
        if self._busy:
            self._end_answer()
        self._door.connections.discard(self)
        self._admission.leave()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for a pending response: the client may have closed one half only.

        Nothing else shows that a client is gone, so bytes that a client must ignore are sent at
        intervals: the host of one that is gone answers them with a reset.
        """
        cycle = self._answering
        if self.scheme == "https" or not self._busy or cycle is None or cycle.more_body:
            return False
        cycle.keep_alive = False
        if not self._half_closed:
            self._half_closed = True
            self._probe(_FIRST_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        """Check whether the client is gone, and try again after ``seconds``."""
        cycle = self._answering
        if cycle is None or not self._busy or self.transport.is_closing():
            return
        gone = self.transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        )
        if gone:
            self.transport.abort()
            return
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding and "probe" in cycle.scope["state"]:
            ignored = cycle.scope["state"]["probe"]
            self.transport.write(b"%x\r\n%b\r\n" % (len(ignored), ignored))
        self.loop.call_later(seconds, self._probe, min(2 * seconds, _LAST_PROBE_SECONDS))

    # Input from the client.

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._reading is _REFUSED:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._reading is _NEXT:
            self._reading = _HEADERS
            self._expect_headers()
        reading = self._reading
        self._received += len(data)
        self._parse(data)
        if self._reading is not reading:
            return
        if reading is _HEADERS and self._received > self._limits.max_header_bytes:
            self.refuse(self._too_large())
        elif reading is _BODY and self._framing_is_excessive():
            self.refuse(_bad_request("The body is mostly chunk sizes, extensions or trailers"))

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            # After the headers: the parser takes all that follows for another protocol.
            rest = data[stopped.args[0] :]
            if self._should_upgrade():
                self._hand_over(rest)
            else:
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self._parse(self._head.without_upgrade() + rest)
        except httptools.HttpParserError:
            self.refuse(self._fault or _bad_request("This is not a valid HTTP/1.1 request"))

    def _should_upgrade(self) -> bool:
        """Return whether to leave HTTP. Other protocols' upgrades are ignored, the request answered."""
        return (
            not self._admission.surplus
            and self._head.version == "1.1"
            and super()._should_upgrade()
        )

    def _hand_over(self, rest: bytes) -> None:
        """Make the connection a WebSocket, which keeps its place and its deadline."""
        self._door.connections.discard(self)
        self.connections.discard(self)
        url = httptools.parse_url(self._head.target)
        target = url.path + (b"?" + url.query if url.query is not None else b"")
        make: Any = self.ws_protocol_class
        protocol = make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.app_state,
            door=self._door,
            admission=self._admission,
        )
        protocol.begin(self.transport, self._head._replace(target=target), rest)

    def on_message_begin(self) -> None:
        """Handle a request's first byte."""
        super().on_message_begin()
        if self._reading is _NOTHING:  # pipelined
            self._expect_headers()
        self._reading = _HEADERS
        self._begin_headers()

    def on_url(self, url: bytes) -> None:
        """Handle a part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer, which is ignored."""
        self._headers += 1
        self._count(len(name) + len(value))
        if self._reading is _HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle a request whose head is complete."""
        parser = self.parser
        version = parser.get_http_version()
        head = self._head = Head(parser.get_method(), self.url, version, self.headers)
        fault = fault_of(head)
        if fault is None and parser.should_upgrade():
            if not self._should_upgrade():
                return
            fault = fault_of_handshake(head)
            if fault is None and self._busy:
                fault = _bad_request("A WebSocket is opened when all requests before are answered")
            if fault is None:
                self.scope["method"] = "GET"
                httptools.parse_url(self.url)
                return
        if fault is None and len(self.pipeline) >= _MOST_PIPELINED:
            fault = _bad_request(f"More than {_MOST_PIPELINED} requests are waiting")
        if fault is not None:
            raise self._refusal(fault)
        self._reading = _BODY
        self._deadline = self.loop.time() + self._limits.body_timeout
        self._received = self._body = 0
        super().on_headers_complete()
        if self._admission.surplus:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body."""
        super().on_body(body)
        self._body += len(body)
        if self.cycle is not None and not self.cycle.response_complete:
            later = self._deadline + len(body) / self._limits.min_body_rate
            self._deadline = min(self.loop.time() + self._limits.body_timeout, later)

    def on_message_complete(self) -> None:
        """Handle the request's last byte."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._await_next()
        else:
            self._reading, self._deadline = _NOTHING, math.inf

    def _expect_headers(self) -> None:
        seconds = self._limits.header_timeout
        if self._admission.surplus:
            seconds = min(seconds, _LINGER_SECONDS)
        self._deadline = self.loop.time() + seconds

    def _begin_headers(self) -> None:
        self._received = self._body = self._header_bytes = self._headers = 0

    def _count(self, size: int) -> None:
        self._header_bytes += size
        limits = self._limits
        if self._header_bytes > limits.max_header_bytes or self._headers > limits.max_headers:
            raise self._refusal(self._too_large())

    def _framing_is_excessive(self) -> bool:
        allowed = self._limits.max_header_bytes + _FRAMING_PER_BYTE * self._body
        return self._received - self._body > allowed

    def _too_large(self) -> ApiError:
        return ApiError(
            431,
            f"The request's headers are more than {self._limits.max_headers} (--max-headers), or have "
            f"more than {self._limits.max_header_bytes} bytes (--max-header-bytes)",
            code="headers_too_large",
        )

    # The response.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = until_closed(app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Handle the end of a response that has been written."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the sweep closes idle connections
        if self._reading is _NOTHING and not self._busy:
            self._await_next()
        elif self._reading is _BODY and self.cycle.response_complete:
            self._deadline = min(self._deadline, self.loop.time() + _LINGER_SECONDS)

    def _await_next(self) -> None:
        self._reading = _NEXT
        self._deadline = self.loop.time() + self._limits.keep_alive_timeout

    @property
    def _busy(self) -> bool:
        """Whether a response is wanted and not complete."""
        cycle = self._answering
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    # Time limits.

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        super().resume_writing()
        self._unsent.drained()

    def check(self, now: float) -> None:
        """End the connection if the client is late; ``now`` is the loop's time."""
        growing = self._busy and not self.flow.write_paused
        if self._unsent.overdue(now, self.transport, growing=growing):
            self._door.note(NOT_READ)
            reset(self.transport)
        elif now >= self._deadline:
            self._expire(now)

    def _expire(self, now: float) -> None:
        waits_for_us = self._busy and not (self._reading is _BODY and self.cycle is self._answering)
        if self._reading is _REFUSED:
            self.transport.abort()
        elif self._reading is _NEXT:
            self.transport.close()
            self._deadline = math.inf  # closed when it is flushed, which is watched, too
        elif waits_for_us or (self._reading is _BODY and self.flow.read_paused):
            self._deadline = now + self._limits.body_timeout
        elif self._reading is _BODY and self.cycle.response_complete:
            self.transport.abort()
        else:
            late = "headers" if self._reading is _HEADERS else "body"
            limits = {
                "headers": f"{self._limits.header_timeout:g} s (--header-timeout)",
                "body": f"{self._limits.body_timeout:g} s (--body-timeout, --min-body-rate)",
            }
            message = f"The request's {late} did not come as fast as they must: {limits[late]}"
            self.refuse(ApiError(408, message, code="request_timeout"))

    # Refusals.

    def refuse_unfinished(self) -> None:
        """Refuse a request whose body is not complete, because the server drains."""
        if self._reading is _BODY and self._busy and self.cycle is self._answering:
            self.refuse(Draining("The server is shutting down", retry_after=RETRY_SECONDS))

    def refuse(self, error: Exception) -> None:
        """Answer with an error instead of the app, which sees a disconnect; then close."""
        if self.transport.is_closing():
            return
        told = to_api_error(error)
        started = False
        if self._answering is not None and self._busy:
            started = self._answering.response_started
            self._answering.scope["state"].get("record", {})["status"] = told.status
            self._end_answer()
        else:
            self._door.refused(told.status)
        self._reading = _REFUSED
        self._deadline = self.loop.time() + _LINGER_SECONDS
        if started:
            self.transport.abort()
            return
        self.transport.write(self._answer(told))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def _refusal(self, error: ApiError) -> ApiError:
        """Return ``error``, to be raised in a callback of the parser."""
        self._fault = error
        return error

    def _end_answer(self) -> None:
        assert self._answering is not None
        self._answering.disconnected = True
        self._answering.message_event.set()
        self.flow.resume_writing()

    def _answer(self, error: ApiError) -> bytes:
        body = msgspec.json.encode(envelope(error))
        headers = [
            *self.server_state.default_headers,
            *((name.lower().encode(), value.encode()) for name, value in error.headers.items()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", secrets.token_hex(12).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[error.status] + lines + b"\r\n" + body


def _bad_request(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_http")
