"""An HTTP/1.1 connection, with a bound on everything a client can make the server wait for or keep.

:mod:`galley.server.request_reader` reads requests, within the limits of headers;
:class:`galley.server.exchange.Exchange` is one request with its response. The connection has requests
answered in their order, and bounds bodies in time and rate, and responses in the time that a client may
read none of them. A request refused here gets the error envelope of the API and, where the client can
still read it, a connection that is closed only after the client has had the time to do so (RFC 9112,
section 9.6).
"""

import asyncio
import math
import socket
from collections import deque
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from galley.errors import Draining
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.protocols.common.errors import ApiError, to_api_error
from galley.server.app_host import AppHost, only_probes
from galley.server.exchange import CONTINUE, Exchange
from galley.server.filling import Filling
from galley.server.front_door import NOT_READ, Admission, FrontDoor
from galley.server.head import Head, bad_request
from galley.server.request_reader import BETWEEN, HEADERS, RequestReader
from galley.server.unsent import Unsent, reset

_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 64 << 20
_MOST_PIPELINED: Final = 8
_FIRST_PROBE_SECONDS: Final = 0.01
_LAST_PROBE_SECONDS: Final = 1.0


class HttpProtocol(asyncio.BufferedProtocol):
    """One connection, until it is closed or becomes a WebSocket.

    All connections read into one buffer: a block of memory of its own for each read would come from the
    system, and go back to it.

    Attributes:
        host: runs the app.
        transport: the connection's.
        writable: set while the client reads what is written.
    """

    transport: asyncio.Transport

    def __init__(self, host: AppHost, door: FrontDoor, admission: Admission) -> None:
        """Create the protocol of a connection that has been admitted."""
        self.host = host
        self._door = door
        self._limits = door.settings
        self._admission = admission
        self._app = only_probes(host.app) if admission.surplus else host.app
        self._loop = asyncio.get_running_loop()
        websockets = host.websockets and not admission.surplus
        self._reader = RequestReader(self, self._limits, websockets=websockets)
        self._arriving: Exchange | None = None
        """The request whose body is not complete."""
        self._answering: Exchange | None = None
        """The request whose response is not complete."""
        self._pipelined: deque[Exchange] = deque()
        """Complete or arriving requests after it."""
        self._refused = False
        self._discarded = 0
        self._deadline = math.inf
        self._half_closed = False
        self._reading_paused = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._unsent = Unsent(self._limits.send_timeout)

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        address = transport.get_extra_info
        self._scheme = "https" if address("sslcontext") else "http"
        self._client, self._server = (address(n) for n in ("peername", "sockname"))
        self._admission.abort = transport.abort
        self._door.add(self)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self._abandon()
        self._reader.close()
        del self._reader  # refers to this
        self._door.remove(self)
        self._admission.leave()

    def eof_received(self) -> bool:
        """Keep the connection open for pending responses: the client may have closed one half only.

        Nothing else shows that a client is gone, so bytes that a client must ignore are sent at
        intervals: the host of one that is gone answers them with a reset.
        """
        if self._scheme == "https" or self._answering is None or self._arriving is not None:
            return False
        self._answer_no_more()
        if not self._half_closed:
            self._half_closed = True
            self._probe(_FIRST_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        """Check whether the client is gone, and try again after ``seconds``."""
        exchange = self._answering
        if exchange is None or self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        ignored = exchange.scope["state"].get("probe")
        if not exchange.started and exchange.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
        elif exchange.chunked and ignored:
            self.transport.write(b"%x\r\n%b\r\n" % (len(ignored), ignored))
        self._loop.call_later(seconds, self._probe, min(2 * seconds, _LAST_PROBE_SECONDS))

    # Input from the client.

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`; :meth:`buffer_updated` follows before anything else."""
        return self.host.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self.data_received(bytes(self.host.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the client."""
        if self._refused:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.abort()
            return
        if self.transport.is_closing():
            return
        if self._is_idle():
            self._reader.phase = HEADERS
            self._expect_headers()
        try:
            self._reader.feed(data)
        except ApiError as error:
            self.refuse(error)

    def request_began(self) -> None:
        """Handle the first byte of a pipelined request."""
        self._expect_headers()

    def request_head(self, head: Head, *, keep_alive: bool) -> None:
        """Handle a request whose head is complete."""
        if len(self._pipelined) >= _MOST_PIPELINED:
            raise bad_request(f"More than {_MOST_PIPELINED} requests are waiting")
        scope = {"type": "http", "method": head.method.decode(), **self._scope(head)}
        keep_alive = keep_alive and not self._admission.surplus
        exchange = self._arriving = Exchange(self, scope, keep_alive=keep_alive)
        self._deadline = self._loop.time() + self._limits.body_timeout
        if self._answering is None:
            self._answer(exchange)
        else:
            self._pipelined.append(exchange)
            self._control_reading()

    def request_body(self, data: bytes) -> None:
        """Handle a part of the body, which must arrive at the minimum rate."""
        exchange = self._arriving
        assert exchange is not None
        exchange.add_body(data)
        self._expect_more(exchange, len(data))
        if exchange.is_full:
            self._control_reading()

    def _expect_more(self, exchange: Exchange, size: int) -> None:
        """Give a body of which ``size`` bytes have arrived more time."""
        if not exchange.complete:
            later = self._deadline + size / self._limits.min_body_rate
            self._deadline = min(self._loop.time() + self._limits.body_timeout, later)

    def fill(self, exchange: Exchange, buffer: memoryview) -> bool:
        """See :class:`galley.server.exchange.Connection`."""
        possible = exchange is self._arriving and len(buffer) == self._reader.unparsed
        if possible and not self.transport.is_closing():
            self.transport.set_protocol(Filling(self, buffer))
            return True
        return False

    def filled(self, size: int) -> None:
        """Handle that bytes of the body have arrived in the app's buffer."""
        exchange = self._arriving
        assert exchange is not None
        exchange.add_filled(size)
        self._expect_more(exchange, size)
        if size == self._reader.unparsed:
            self.transport.set_protocol(self)
        self._reader.passed(size)

    def request_ended(self) -> None:
        """Handle the end of the body."""
        assert self._arriving is not None
        self._arriving.end_body()
        self._arriving, self._deadline = None, math.inf
        if self._answering is None:
            self._await_next()

    def websocket_head(self, head: Head, rest: bytes) -> None:
        """Make the connection a WebSocket, which keeps its place."""
        if self._answering is not None:
            raise bad_request(
                "A WebSocket can only be opened after all previous requests are answered"
            )
        from galley.server.websocket_protocol import WebSocketProtocol  # most servers never need it

        scope = {"type": "websocket", **self._scope(head)}
        scope["scheme"] = "wss" if self._scheme == "https" else "ws"
        self._door.remove(self)
        protocol = WebSocketProtocol(self.host, self._door, self._admission, self.transport)
        protocol.begin(scope, head, rest)
        self._loop.call_soon(self._reader.close)  # its parser is reading

    def _scope(self, head: Head) -> Scope:
        """Return what the ASGI scopes of requests and WebSockets have in common."""
        path, query = head.path_and_query()
        return {
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": head.version,
            "scheme": self._scheme,
            "path": (unquote_to_bytes(path) if b"%" in path else path).decode(errors="replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client and self._client[:2],
            "server": self._server and self._server[:2],
            "state": {},
        }

    def _control_reading(self) -> None:
        """Read only while what was read is not more than the app can be given soon."""
        full = bool(self._pipelined) or (self._arriving is not None and self._arriving.is_full)
        paused = full and not self._refused
        if paused is not self._reading_paused and not self.transport.is_closing():
            self._reading_paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _expect_headers(self) -> None:
        seconds = self._limits.header_timeout
        if self._admission.surplus:
            seconds = min(seconds, _LINGER_SECONDS)
        self._deadline = self._loop.time() + seconds

    def _await_next(self) -> None:
        self._deadline = self._loop.time() + self._limits.keep_alive_timeout

    def _is_idle(self) -> bool:
        """Return whether all requests are answered, and no other has begun."""
        return self._answering is None and self._reader.phase is BETWEEN

    # Responses.

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        self.host.start(exchange.run(self._app))

    def body_received(self) -> None:
        """Handle that the app received all of the body that had arrived."""
        self._control_reading()

    def answered(self, exchange: Exchange) -> None:
        """Handle the end of a response that has been written."""
        self._answering = None
        if exchange is self._arriving:
            self.transport.set_protocol(self)  # the rest of its body goes nowhere
        if not exchange.keep_alive:
            self._pipelined.clear()
            if exchange is self._arriving:
                self._linger()
            else:
                self.transport.close()
            return
        if self._pipelined:
            self._answer(self._pipelined.popleft())
        elif exchange is self._arriving:
            self._deadline = min(self._deadline, self._loop.time() + _LINGER_SECONDS)
        elif self._is_idle():
            self._await_next()
        self._control_reading()

    def pause_writing(self) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self.writable.set()
        self._unsent.drained()

    # Time limits.

    def check(self, now: float) -> None:
        """End the connection if the client is late; ``now`` is the loop's time."""
        growing = self._answering is not None and self.writable.is_set()
        if self._unsent.overdue(now, self.transport, growing=growing):
            self._door.note(NOT_READ)
            reset(self.transport)
        elif now >= self._deadline:
            self._expire(now)

    def _expire(self, now: float) -> None:
        waits_for_us = self._answering is not None and self._answering is not self._arriving
        if self._refused or (self._arriving is not None and self._arriving.complete):
            self.transport.abort()
        elif self._is_idle():
            self.transport.close()
            self._deadline = math.inf  # closed once flushed, which has its own limit
        elif waits_for_us or self._reading_paused:
            self._deadline = now + self._limits.body_timeout
        else:
            self.refuse(self._timeout())

    def _timeout(self) -> ApiError:
        limits = self._limits
        if self._reader.phase is HEADERS:
            part, limit = "headers", f"{limits.header_timeout:g} s (--header-timeout)"
        else:
            part = "body"
            limit = f"{limits.body_timeout:g} s (--body-timeout, --min-body-rate)"
        message = f"Timed out reading the request's {part}: the limit is {limit}"
        return ApiError(408, message, code="request_timeout")

    # Refusals, and the end.

    def refuse_unfinished(self) -> None:
        """Refuse a request whose body is not complete, because the server drains."""
        if self._answering is not None and self._answering is self._arriving:
            self.refuse(Draining("The server is shutting down", retry_after=RETRY_SECONDS))

    def refuse(self, error: Exception) -> None:
        """Answer with an error instead of the app, which sees a disconnect; then close."""
        if self.transport.is_closing():
            return
        reported = to_api_error(error)
        exchange = self._answering
        if exchange is None:
            self._door.refused(reported.status)
        else:
            exchange.scope["state"].get("record", {})["status"] = reported.status
            self._abandon()
            if exchange.started:
                self.transport.abort()
                return
        self.transport.write(self.host.error(reported))
        self._linger()

    def shut_down(self) -> None:
        """Close when the current response is complete; without one, at once."""
        if self._answering is None:
            self.transport.close()
        else:
            self._pipelined.clear()
            self._answer_no_more()

    def _answer_no_more(self) -> None:
        """Close after the last response: no further request is read."""
        last = self._pipelined[-1] if self._pipelined else self._answering
        assert last is not None
        last.keep_alive = False

    def _abandon(self) -> None:
        """Have the app see a disconnect."""
        if not self.transport.is_closing():
            self.transport.set_protocol(self)
        self._pipelined.clear()
        if self._answering is not None:
            self._answering.abandon()
            self._answering = None
        self.writable.set()

    def _linger(self) -> None:
        """Close as soon as the client has had the time to read; discard what it sends until then."""
        self._refused = True
        self._deadline = self._loop.time() + _LINGER_SECONDS
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._control_reading()
