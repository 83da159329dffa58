"""How much WebSocket input is processed before other tasks get a turn."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.frames import OP_CONT, OP_PING, OP_TEXT, Frame

from galley.server.app_host import AppHost
from galley.server.front_door import Admission, FrontDoor
from galley.server.http_protocol import HttpProtocol
from galley.server.websocket_protocol import WebSocketProtocol
from galley.settings.config import Settings

FRAMES = 20_000
A_TURN = 43
"""Smallest frames that one turn handles."""

HANDSHAKE = b"\r\n".join(
    (
        b"GET / HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        b"\r\n",
    )
)


def frames(kind: str) -> Iterator[Frame]:
    """Yield many frames of one kind, then a message."""
    if kind == "empty parts":
        yield Frame(OP_TEXT, b"", fin=False)
    for _ in range(FRAMES):
        yield {
            "pings": Frame(OP_PING, b""),
            "messages": Frame(OP_TEXT, b"{}"),
            "empty parts": Frame(OP_CONT, b"", fin=False),
        }[kind]
    end = OP_CONT if kind == "empty parts" else OP_TEXT
    yield Frame(end, b"end")


async def flooded(data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Count frames and messages in each round of the event loop, until the message "end" arrives."""
    over = asyncio.Event()
    read: list[Frame] = []
    messages: list[Any] = []
    handle = WebSocketProtocol._handle

    def counted(protocol: WebSocketProtocol, frame: Frame) -> None:
        read.append(frame)
        handle(protocol, frame)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive()).get("text") != "end":
            messages.append(message)
        over.set()

    monkeypatch.setattr(WebSocketProtocol, "_handle", counted)
    host = AppHost(app, headers=[], max_message_bytes=2**20)
    door = FrontDoor(Settings(), models=1, refused=lambda status: None)

    def connect(admission: Admission) -> HttpProtocol:
        return HttpProtocol(host, door, admission)

    rounds: list[tuple[int, int]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        door.open(listener, connect)
        client = threading.Thread(target=flood, args=(port, data))
        client.start()
        while not over.is_set():
            before = len(read), len(messages)
            await asyncio.sleep(0)
            rounds.append((len(read) - before[0], len(messages) - before[1]))
        await door.close(1)
        await asyncio.to_thread(client.join)
    return rounds


def flood(port: int, data: bytes) -> None:
    """Send everything at once, and read until the server disconnects."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HANDSHAKE)
        assert client.recv(12) == b"HTTP/1.1 101"
        sending = threading.Thread(target=client.sendall, args=(data,))
        sending.start()
        with contextlib.suppress(ConnectionError):
            while client.recv(65536):
                pass
        sending.join()


@pytest.mark.parametrize("kind", ["pings", "messages", "empty parts"])
def test_a_flood_does_not_delay_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(frame.serialize(mask=True) for frame in frames(kind))
    rounds = asyncio.run(flooded(data, monkeypatch))
    assert sum(read for read, _ in rounds) >= FRAMES
    assert max(read for read, _ in rounds) <= A_TURN
    assert max(messages for _, messages in rounds) <= 1
