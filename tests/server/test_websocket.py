"""A socket whose client does not read, does not send, or has disconnected."""

import asyncio
from typing import Any

import pytest
from starlette.websockets import WebSocket

from galley.protocols.http import websocket
from galley.protocols.http.errors import ClientGone
from galley.protocols.http.websocket import EventSocket


def socket_of(*received: dict[str, Any], reads: bool = True) -> EventSocket:
    """An accepted socket that receives these messages and then nothing."""
    messages = iter([{"type": "websocket.connect"}, *received])

    async def receive() -> Any:
        message = next(messages, None)
        return message or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if not reads and message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    socket = WebSocket({"type": "websocket"}, receive, send)
    asyncio.run(socket.accept())
    return EventSocket(socket)


def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_SEND_SECONDS", 0.01)
    socket = socket_of(reads=False)
    with pytest.raises(ClientGone, match="too slowly"):
        asyncio.run(socket.send({"type": "x"}))
    asyncio.run(socket.close(1000, ""))


def test_a_client_that_sends_nothing_is_noticed() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(socket_of().receive(0.01))


def test_a_client_that_closes_is_no_client_that_is_lost() -> None:
    gone = {"type": "websocket.disconnect", "reason": ""}
    for code in (1000, 1001, 1005):
        assert asyncio.run(socket_of({**gone, "code": code}).receive(1)) is None
    with pytest.raises(ClientGone):
        asyncio.run(socket_of({**gone, "code": 1006}).receive(1))
