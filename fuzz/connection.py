"""Fuzz target: the bytes of an HTTP connection, up to requests and their bodies.

An input arrives at once, and again in pieces whose size depends on its length: the requests are the same.
"""

from typing import Final

from galley.protocols.common.errors import ApiError
from galley.server.head import Head
from galley.server.request_reader import RequestReader
from galley.settings.config import Settings

TOKENS: Final = (
    *(
        "GET / HTTP/1.1\r\n",
        "POST /v1/models HTTP/1.0\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "CONNECT a:1",
    ),
    *("Host: localhost\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "\r\n\r\n"),
    *(
        "Connection: close\r\n",
        "Connection: Upgrade\r\n",
        "Upgrade: h2c\r\n",
        "Upgrade: websocket\r\n",
    ),
    *("Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"),
    *("3;x=y\r\nabc\r\n", "0\r\n\r\n", "Expect: 100-continue\r\n", "http://localhost:80/a?b#c"),
)

_LIMITS: Final = Settings()
_MOST_MESSAGE: Final = 500
_STATUSES: Final = (400, 426, 431, 501, 505)


class _Requests:
    """Collects the requests of a connection."""

    def __init__(self) -> None:
        self.found: list[tuple[Head, bytearray]] = []

    def request_began(self) -> None:
        pass

    def request_head(self, head: Head, *, keep_alive: bool) -> None:
        head.path_and_query()
        self.found.append((head, bytearray()))

    def request_body(self, data: bytes) -> None:
        self.found[-1][1].extend(data)

    def request_ended(self) -> None:
        pass

    def websocket_head(self, head: Head, rest: bytes) -> None:
        self.found.append((head, bytearray()))
        raise ApiError(400, "the connection is no longer HTTP")


def fuzz(data: bytes) -> None:
    """Read the requests. A refusal must be a short client error."""
    size = 1 + len(data) % 17
    whole, refused = _requests([data])
    parts, also = _requests([data[start : start + size] for start in range(0, len(data), size)])
    assert refused or also or whole == parts, (whole, parts)


def _requests(pieces: list[bytes]) -> tuple[list[tuple[Head, bytearray]], bool]:
    """Return the requests in these bytes, and whether the last one was refused."""
    requests = _Requests()
    reader = RequestReader(requests, _LIMITS, websockets=True)
    refusal: ApiError | None = None
    try:
        for piece in pieces:
            reader.feed(piece)
    except ApiError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status in _STATUSES, refusal.status
        assert 0 < len(str(refusal)) < _MOST_MESSAGE, refusal
        assert "\n" not in str(refusal), refusal
    return requests.found, refusal is not None
