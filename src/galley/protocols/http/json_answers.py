"""JSON responses of any size."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PIECE: Final = 64 * 1024
_WHOLE: Final = 1024 * 1024
"""Size in bytes up to which a response is sent with its length."""


class Json(Response):
    """A response holding a plain object, or a list of them, as JSON in UTF-8."""

    media_type = "application/json"

    def __init__(
        self, value: Mapping[str, Any] | Sequence[Mapping[str, Any]], status_code: int = 200
    ) -> None:
        super().__init__(msgspec.json.encode(value), status_code)


class LargeJson(Response):
    """A response holding a plain object, encoded and sent in pieces so that others are served.

    Each item of its lists is encoded separately, while the client receives what precedes it.
    """

    media_type = "application/json"

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._value = value

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response: at once and with its length if small, otherwise in pieces."""
        parts = _parts(self._value)
        begun = b""
        for part in parts:
            begun += part
            if len(begun) > _WHOLE:
                break
        else:
            self.headers["content-length"] = str(len(begun))
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _send_pieces(send, begun)
        for part in parts:
            await _send_pieces(send, part)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _parts(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield ``value`` as JSON, in parts no larger than one item of its lists."""
    before = b"{"
    for name, field in value.items():
        yield before + msgspec.json.encode(name) + b":"
        before = b","
        if not isinstance(field, list):
            yield msgspec.json.encode(field)
            continue
        yield b"["
        for index, item in enumerate(field):
            yield (b"," if index else b"") + msgspec.json.encode(item)
        yield b"]"
    yield b"}" if value else b"{}"


async def _send_pieces(send: Send, data: bytes) -> None:
    for first in range(0, len(data), _PIECE):
        piece = data[first : first + _PIECE]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        # With a fast reader, send never waits, which would starve other requests.
        await asyncio.sleep(0)
