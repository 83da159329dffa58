"""A plain WebSocket client of ``/v1/realtime``."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from websockets.sync.client import ClientConnection, connect

from tests.server.serving import Server

TEXT = "conversation.item.input_audio_transcription."
AT_16_KHZ = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": {"language": "en"}}
SILENCE = np.zeros(16_000, np.float32)
"""A second at 16 kHz."""


class LiveClient:
    """A connection, opened on entry; received events are kept in ``events``."""

    def __init__(
        self, server: Server, query: str = "?intent=transcription", **headers: str
    ) -> None:
        self._url = f"ws://127.0.0.1:{server.port}/v1/realtime{query}"
        self._headers = headers
        self.events: list[dict[str, Any]] = []
        self.socket: ClientConnection

    def __enter__(self) -> Self:
        self.socket = connect(
            self._url, additional_headers=self._headers, max_size=2**24, close_timeout=1
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, type: str, **fields: Any) -> None:
        """Send an event."""
        self.socket.send(json.dumps({"type": type, **fields}))

    def append(self, samples: NDArray[np.float32], block: int = 4_800) -> None:
        """Send audio in [-1, 1], at the rate of the session."""
        pcm = np.round(samples * 32_767).astype("<i2")
        for first in range(0, len(pcm), block):
            data = base64.b64encode(pcm[first : first + block].tobytes()).decode()
            self.send("input_audio_buffer.append", audio=data)

    @contextmanager
    def quiet(self, rate: int = 24_000) -> Iterator[None]:
        """Send silence at the pace of speech within the block."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.02):
                self.append(np.zeros(rate // 50, np.float32))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join()

    def until(self, *types: str, seconds: float = 60) -> dict[str, Any]:
        """Wait for the next event of one of these types; an unexpected error fails the test."""
        while True:
            event: dict[str, Any] = json.loads(self.socket.recv(timeout=seconds))
            self.events.append(event)
            if event["type"] in types:
                return event
            assert event["type"] != "error", event

    def of(self, type: str) -> list[dict[str, Any]]:
        """Return all events of a type so far."""
        return [event for event in self.events if event["type"] == type]

    def refused(self, type: str, **fields: Any) -> dict[str, Any]:
        """Send an event and return the error that answers it."""
        self.send(type, **fields)
        return self.error()

    def error(self) -> dict[str, Any]:
        """Wait for the next event, which must be an error, and return it."""
        error: dict[str, Any] = self.until("error")["error"]
        return error


def configure(client: LiveClient, **source: Any) -> dict[str, Any]:
    """Send ``session.update`` and return the resulting session."""
    client.send("session.update", session={"type": "transcription", "audio": {"input": source}})
    session: dict[str, Any] = client.until("session.updated")["session"]
    return session
