"""WebSockets on top of uvicorn, behind the front door's time limits and bounds.

A client's data is read in turns (:mod:`galley.server.turns`), of a few frames each, and only while the
app has taken all messages before and the client reads its output. So neither a flood of frames nor
pongs that nobody reads cost more than a buffer, or delay others.

Imported with the first WebSocket, because it needs the package ``websockets``.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import Protocol

from galley.server.front_door import NOT_READ, Admission, FrontDoor
from galley.server.head import Head
from galley.server.unsent import Unsent, reset

_INVALID_DATA: Final = 1007
"""Close code for text that is not UTF-8 (RFC 6455, 7.4.1)."""

_LINGER_SECONDS: Final = 2.0

_PIECE_BYTES: Final = 256
"""Bytes parsed at once. A frame has at least six bytes, so these complete at most 43 of them."""

_TURN_BYTES: Final = 64 * 1024
"""Bytes parsed in a turn, of a message that is longer than a piece."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its handshake on."""

    def __init__(self, door: FrontDoor, admission: Admission, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._door = door
        self._admission = admission
        self._pending = bytearray()
        self._failed = False
        self._unsent = Unsent(door.settings.send_timeout)

    def begin(self, transport: asyncio.Transport, head: Head, rest: bytes) -> None:
        """Take the connection over from HTTP.

        Args:
            transport: the connection's.
            head: the request that opens the WebSocket, which has been checked.
            rest: the bytes after it.
        """
        transport.set_protocol(self)
        self.connection_made(transport)
        self._door.connections.add(self)
        # The request has been read already: continue with frames.
        self.conn.parser = Protocol.parse(self.conn)
        next(self.conn.parser)
        headers = Headers(
            (n.decode(), v.decode("ascii", "surrogateescape")) for n, v in head.headers
        )
        self.handle_connect(Request(head.target.decode(), headers))
        if rest:
            self.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_lost(exc)
        self._pending.clear()
        self._door.turns.leave(self)
        self._door.connections.discard(self)
        self._admission.leave()

    # Input from the client.

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._failed:
            return
        self._pending += data
        self.read_paused = True
        self.transport.pause_reading()
        self._read_on()

    def take_turn(self) -> None:
        """Parse some of the input, up to the piece that completes a frame."""
        start = 0
        for start in range(0, min(len(self._pending), _TURN_BYTES), _PIECE_BYTES):
            self.conn.receive_data(bytes(self._pending[start : start + _PIECE_BYTES]))
            if self.conn.parser_exc is not None or self.conn.events:
                break
        del self._pending[: start + _PIECE_BYTES]
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
        else:
            self.handle_events()
            self._read_on()

    def _read_on(self) -> None:
        """Continue reading, unless the app or the client has to do something first."""
        waits_for_app = not (self.close_sent or self.queue.empty())
        if not self.handshake_complete or self._failed or waits_for_app:
            return
        if not self.writable.is_set():
            return  # a reply would only wait
        if self._pending:
            self._door.turns.ask(self)
        elif self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to one buffer, because there may be as many as a message has bytes, or more."""
        if not isinstance(self.frames[0], bytearray):
            self.frames[0] = bytearray(self.frames[0])  # type: ignore[call-overload]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    async def receive(self) -> Any:
        """Return the next ASGI message. Others have a turn before each, however many have come."""
        await asyncio.sleep(0)
        message = await self.queue.get()
        self._read_on()
        return message

    def send_receive_event_to_app(self) -> None:
        """Hand a complete message to the app, if it is valid."""
        if self.curr_msg_data_type == "text":
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(_INVALID_DATA, "text that is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Send the client the reason, and close once it has had the time to read that (RFC 9112, 9.6).

        Further input is read and discarded: closing on unread bytes resets the connection, and
        the close code would be lost.
        """
        self._failed = True
        self._pending.clear()
        self._door.turns.leave(self)
        if self.close_sent or self.conn.close_sent is None:
            return
        self.stop_keepalive()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    # Output to the client.

    async def send(self, message: Any) -> None:
        """Send an ASGI message; a refused handshake has the headers of every other response."""
        if message["type"] == "websocket.http.response.start":
            message = {**message, "headers": [*self.default_headers, *message.get("headers", [])]}
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # uvicorn would otherwise report an incomplete handshake
        self._read_on()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        super().resume_writing()
        self._unsent.drained()
        self._read_on()

    # Time limits of the front door.

    def check(self, now: float) -> None:
        """End the connection if the client reads nothing of its output; ``now``: the loop's time."""
        growing = not self.transport.is_closing() and self.writable.is_set()
        if self._unsent.overdue(now, self.transport, growing=growing):
            self._door.note(NOT_READ)
            reset(self.transport)

    def refuse_unfinished(self) -> None:
        """Do nothing: there is no request whose body is not complete."""
