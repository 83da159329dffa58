"""WebSockets on which both sides send JSON objects: bounded and strict."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from galley.errors import RequestError
from galley.protocols.common.json_body import parse_json
from galley.protocols.http.body import LARGE
from galley.protocols.http.errors import ClientGone

_SEND_SECONDS: Final = 10.0
"""Seconds without reading after which a client is disconnected."""

_CHECK_SECONDS: Final = 1.0
"""Time after which it is checked again whether the client may still send."""

NORMAL, GOING_AWAY, NOT_ALLOWED, INTERNAL_ERROR, TRY_AGAIN = 1000, 1001, 1008, 1011, 1013
"""Close codes (RFC 6455, 7.4.1; 1013 is from IANA's registry)."""

_CLOSED: Final = (1000, 1001, 1005)
"""Close codes of a client that has finished: normal, going away, none given."""


class EventSocket:
    """An accepted WebSocket on which both sides send JSON objects.

    Attributes:
        received: size in bytes of the last object received.
    """

    def __init__(self, socket: WebSocket, checks: Sequence[Callable[[], None]] = ()) -> None:
        """Wrap a socket; ``checks`` raise ApiError when the client may no longer send."""
        self.received = 0
        self._socket = socket
        self._checks = checks
        self._checked = time.monotonic()

    async def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next object; None if the client has closed the connection.

        Raises:
            RequestError: the client sent something else.
            ApiError: the client may no longer send, because its key has been removed, for example.
            TimeoutError: nothing arrived within ``seconds``.
            ClientGone: the connection is lost.
        """
        # wait_for would swallow a cancellation that arrives together with a message (Python 3.11).
        async with asyncio.timeout(seconds):
            message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            if message["code"] in _CLOSED:
                return None
            raise ClientGone("the client disconnected")
        text = message.get("text")
        if text is None:
            raise RequestError("Events are JSON in text frames; this was a binary frame")
        if time.monotonic() - self._checked >= _CHECK_SECONDS:
            self._checked = time.monotonic()
            for check in self._checks:
                check()
        data = text.encode()
        self.received = len(data)
        if len(data) > LARGE:
            return await asyncio.to_thread(parse_json, data, what="The event")
        return parse_json(data, what="The event")

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an object, waiting while the client reads slowly.

        Raises:
            ClientGone: the client hung up, or has not read for a while.
        """
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._socket.send_text(msgspec.json.encode(event).decode())
        except TimeoutError:
            raise ClientGone("the client reads too slowly") from None
        except (WebSocketDisconnect, RuntimeError) as error:  # starlette raises either
            raise ClientGone("the client disconnected") from error

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; harmless if it is already closed.

        Args:
            code: the WebSocket close code.
            reason: at most 123 bytes.
        """
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._socket.close(code, reason)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            pass
