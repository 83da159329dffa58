"""A WebSocket behind the front door's time limits and bounds.

``websockets`` parses and writes frames; this module connects them with the transport and the ASGI app.

A client's data is read in turns (:mod:`galley.server.turns`), of a few frames each, and only while the
app has received all messages before and the client reads its output. So neither a flood of frames nor
pongs that nobody reads cost more than a buffer, or delay others.

Imported with the first WebSocket, because it needs the package ``websockets``.
"""

import asyncio
import base64
import enum
import hashlib
import logging
import math
from typing import Final

from starlette.types import Message, Scope
from websockets.frames import OP_BINARY, OP_CLOSE, OP_CONT, OP_TEXT, CloseCode, Frame
from websockets.protocol import SERVER, Protocol

from galley.errors import Draining
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.protocols.common.errors import to_api_error
from galley.server.app_host import AppHost
from galley.server.front_door import NOT_READ, Admission, FrontDoor
from galley.server.head import Head
from galley.server.unsent import Unsent, reset

log = logging.getLogger("galley.server")

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Suffix of the key in the handshake's hash (RFC 6455, section 1.3)."""

_PING_SECONDS: Final = 20.0
"""Interval of pings. They keep the connection open in proxies; nothing waits for the pongs, because
while the app is busy nothing is read."""

_CLOSE_SECONDS: Final = 10.0
"""Seconds for a client to answer a close frame."""

_LINGER_SECONDS: Final = 2.0

_PIECE_BYTES: Final = 256
"""Bytes parsed at once. A frame has at least six bytes, so these complete at most 43 of them."""

_TURN_BYTES: Final = 64 * 1024
"""Bytes parsed in a turn, of a message that is longer than a piece."""


class _Stage(enum.Enum):
    HANDSHAKE = enum.auto()
    """The app has neither accepted nor denied the connection."""
    DENIAL = enum.auto()
    """The app is sending an HTTP response instead."""
    OPEN = enum.auto()
    CLOSING = enum.auto()
    """A close frame was sent; the client's is awaited."""
    ENDED = enum.auto()
    """Nothing is sent any more, and what arrives is discarded."""


class WebSocketProtocol(asyncio.Protocol):
    """One connection, from its handshake on."""

    def __init__(
        self, host: AppHost, door: FrontDoor, admission: Admission, transport: asyncio.Transport
    ) -> None:
        """Create the protocol for a connection that was HTTP so far."""
        self._host = host
        self._door = door
        self._admission = admission
        self._transport = transport
        self._stage = _Stage.HANDSHAKE
        self._frames = Protocol(SERVER, max_size=host.max_message_bytes)
        self._pending = bytearray()
        self._reading_paused = False
        self._message = bytearray()
        self._is_text = False
        self._for_app: asyncio.Queue[Message] = asyncio.Queue()
        self._denial: tuple[int, list[tuple[bytes, bytes]], list[bytes]] = (403, [], [])
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = Unsent(door.settings.send_timeout)
        self._loop = asyncio.get_running_loop()
        self._ping_at = self._loop.time() + _PING_SECONDS
        self._deadline = math.inf

    def begin(self, scope: Scope, head: Head, rest: bytes) -> None:
        """Take the connection over from HTTP, and have the app accept or deny it.

        Args:
            scope: the request's ASGI scope, without what only WebSockets have.
            head: a valid handshake.
            rest: the bytes after it.
        """
        protocols = b",".join(head.all(b"sec-websocket-protocol")).decode("latin-1").split(",")
        scope["subprotocols"] = [name.strip() for name in protocols if name.strip()]
        scope["extensions"] = {"websocket.http.response": {}}
        key = head.all(b"sec-websocket-key")[0]
        self._proof = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        self._transport.set_protocol(self)
        self._door.add(self)
        self._for_app.put_nowait({"type": "websocket.connect"})
        self._host.start(self._run(scope))
        if rest:
            self.data_received(rest)

    async def _run(self, scope: Scope) -> None:
        code = CloseCode.NORMAL_CLOSURE
        try:
            await self._host.app(scope, self._receive, self._send)
        except ConnectionError:
            pass  # the client is gone
        except Exception:
            log.exception("a WebSocket failed")
            code = CloseCode.INTERNAL_ERROR
        if self._stage is _Stage.OPEN:
            self._close(code, "")
        elif self._stage in (_Stage.HANDSHAKE, _Stage.DENIAL):
            self._refuse(RuntimeError("the app neither accepted nor denied the WebSocket"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._disconnect(CloseCode.ABNORMAL_CLOSURE, "")
        self._writable.set()
        self._door.turns.leave(self)
        self._door.remove(self)
        self._admission.leave()

    # Input from the client.

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._stage is _Stage.ENDED:
            return
        self._pending += data
        self._pause_reading(True)
        self._read_on()

    def take_turn(self) -> None:
        """Parse some of the input, up to the piece that completes a frame."""
        start = 0
        for start in range(0, min(len(self._pending), _TURN_BYTES), _PIECE_BYTES):
            self._frames.receive_data(bytes(self._pending[start : start + _PIECE_BYTES]))
            if self._frames.parser_exc is not None or self._frames.events:
                break
        del self._pending[: start + _PIECE_BYTES]
        for frame in self._frames.events_received():
            assert isinstance(frame, Frame)
            self._handle(frame)
        if self._frames.parser_exc is not None:
            self._fail()
        self._flush()  # pongs, or a close frame
        self._read_on()

    def _read_on(self) -> None:
        """Continue reading, unless the app or the client has to do something first."""
        waits_for_app = self._stage is _Stage.OPEN and not self._for_app.empty()
        if self._stage in (_Stage.HANDSHAKE, _Stage.DENIAL) or waits_for_app:
            return
        if not self._writable.is_set():
            return  # the reply would only wait
        if self._pending:
            self._door.turns.ask(self)
        else:
            self._pause_reading(False)

    def _pause_reading(self, paused: bool) -> None:
        if paused is not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _handle(self, frame: Frame) -> None:
        """Handle a frame. Pings have been answered, and nothing waits for pongs."""
        if frame.opcode in (OP_TEXT, OP_BINARY):
            self._is_text = frame.opcode is OP_TEXT
            self._message = bytearray(frame.data)
        elif frame.opcode is OP_CONT:
            # One buffer, because there may be as many fragments as a message has bytes, or more.
            self._message += frame.data
        elif frame.opcode is OP_CLOSE:
            self._handle_close()
            return
        else:
            return
        if frame.fin and self._stage is _Stage.OPEN:
            self._deliver()

    def _deliver(self) -> None:
        """Hand a complete message to the app, if it is valid."""
        data, self._message = self._message, bytearray()
        try:
            content = {"text": data.decode()} if self._is_text else {"bytes": bytes(data)}
        except UnicodeDecodeError:
            self._frames.fail(CloseCode.INVALID_DATA, "text that is not UTF-8")
            self._fail()
        else:
            self._for_app.put_nowait({"type": "websocket.receive", **content})

    def _handle_close(self) -> None:
        """Handle the client's close frame, which has been answered if it was the first."""
        close = self._frames.close_rcvd
        assert close is not None
        self._flush()
        self._disconnect(close.code, close.reason)
        self._transport.close()

    def _fail(self) -> None:
        """Send the client the reason, and close once it has had the time to read that (RFC 9112, 9.6).

        Further input is read and discarded: closing on unread bytes resets the connection, and
        the close code would be lost.
        """
        if self._stage is _Stage.ENDED:
            return
        close = self._frames.close_sent
        assert close is not None
        self._flush()
        self._disconnect(close.code, close.reason)
        self._deadline = self._loop.time() + _LINGER_SECONDS
        self._pause_reading(False)

    # The app.

    async def _receive(self) -> Message:
        """Return the next ASGI message. Others have a turn before each, however many have come."""
        await asyncio.sleep(0)
        message = await self._for_app.get()
        self._read_on()
        return message

    async def _send(self, message: Message) -> None:
        """Send an ASGI message, waiting while the client reads slowly.

        Raises:
            ConnectionResetError: the connection is closed.
            RuntimeError: the message does not follow those before.
        """
        await self._writable.wait()
        if self._stage in (_Stage.CLOSING, _Stage.ENDED):
            raise ConnectionResetError("the WebSocket is closed")
        match self._stage, message["type"]:
            case _Stage.HANDSHAKE, "websocket.accept":
                self._accept(message)
            case _Stage.HANDSHAKE, "websocket.close":
                self._deny()
            case _Stage.HANDSHAKE, "websocket.http.response.start":
                self._stage = _Stage.DENIAL
                self._denial = (message["status"], list(message.get("headers", ())), [])
            case _Stage.DENIAL, "websocket.http.response.body":
                self._denial[2].append(message.get("body", b""))
                if not message.get("more_body", False):
                    self._deny()
            case _Stage.OPEN, "websocket.send":
                if (text := message.get("text")) is not None:
                    self._frames.send_text(text.encode())
                else:
                    self._frames.send_binary(message["bytes"])
                self._flush()
            case _Stage.OPEN, "websocket.close":
                self._close(message.get("code", 1000), message.get("reason") or "")
            case stage, kind:
                raise RuntimeError(f"the app sent {kind} in stage {stage.name} of a WebSocket")
        self._read_on()

    def _accept(self, message: Message) -> None:
        headers = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", self._proof),
            *message.get("headers", ()),
        ]
        if subprotocol := message.get("subprotocol"):
            headers.append((b"sec-websocket-protocol", subprotocol.encode()))
        self._write(self._host.head(101, headers))
        self._stage = _Stage.OPEN

    def _deny(self) -> None:
        status, headers, parts = self._denial
        body = b"".join(parts)
        kept = [h for h in headers if h[0] not in (b"content-length", b"connection")]
        kept += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        self._write(self._host.head(status, kept) + body)
        self._disconnect(CloseCode.ABNORMAL_CLOSURE, "")
        self._transport.close()

    def _refuse(self, error: Exception) -> None:
        """Answer the handshake with an error instead of the app."""
        self._write(self._host.error(to_api_error(error)))
        self._disconnect(CloseCode.ABNORMAL_CLOSURE, "")
        self._transport.close()

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame; the client is to answer it."""
        self._frames.send_close(code, reason)
        self._flush()
        self._disconnect(code, reason)
        self._stage = _Stage.CLOSING
        self._deadline = self._loop.time() + _CLOSE_SECONDS
        self._read_on()

    def _disconnect(self, code: int, reason: str) -> None:
        """End the connection for the app, if that has not happened."""
        if self._stage not in (_Stage.CLOSING, _Stage.ENDED):
            message = {"type": "websocket.disconnect", "code": code, "reason": reason}
            self._for_app.put_nowait(message)
        self._stage = _Stage.ENDED
        self._pending.clear()
        self._door.turns.leave(self)

    # Output to the client.

    def _flush(self) -> None:
        self._write(b"".join(self._frames.data_to_send()))

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable.set()
        self._unsent.drained()
        self._read_on()

    # Time limits, and the end.

    def check(self, now: float) -> None:
        """End the connection if the client is late; ``now``: the loop's time."""
        growing = not self._transport.is_closing() and self._writable.is_set()
        if self._unsent.overdue(now, self._transport, growing=growing):
            self._door.note(NOT_READ)
            reset(self._transport)
        elif now >= self._deadline:
            self._transport.abort()
        elif now >= self._ping_at and self._stage is _Stage.OPEN:
            self._ping_at = now + _PING_SECONDS
            if self._writable.is_set():
                self._frames.send_ping(b"")
                self._flush()

    def refuse_unfinished(self) -> None:
        """Do nothing: there is no request whose body is not complete."""

    def shut_down(self) -> None:
        """Close, because the server ends."""
        if self._stage is _Stage.OPEN:
            self._close(CloseCode.SERVICE_RESTART, "")
        elif self._stage in (_Stage.HANDSHAKE, _Stage.DENIAL):
            self._refuse(Draining("The server is shutting down", retry_after=RETRY_SECONDS))
        self._transport.close()
