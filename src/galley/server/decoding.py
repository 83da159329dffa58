"""Compressed request bodies (RFC 9110, section 8.4): decoded as they are read, a little at a time.

Limits apply to the decoded bytes: a reader that reaches one stops, and no more is decoded.
"""

import asyncio
import zlib
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from galley.errors import RequestError
from galley.protocols.common.errors import ApiError
from galley.protocols.http.errors import error_response
from galley.protocols.http.header_values import header_values

_PART_BYTES: Final = 64 * 1024
"""Bytes decoded at a time, before the server's other tasks get a turn."""

_MOST_OVERHEAD: Final = 64 * 1024
"""Bytes by which a body may exceed its decoded size, since it can contain any number of empty blocks."""

_HEADER: Final = "content-encoding"
_IDENTITY: Final = "identity"
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB: Final = zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8


class DecodeBodies:
    """ASGI middleware: the apps behind it see the decoded body, of unknown length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or _HEADER not in header_values(scope):
            await self._app(scope, receive, send)
            return
        named = ", ".join(Headers(scope=scope).getlist(_HEADER)).strip().lower()
        if named in ("", _IDENTITY):
            await self._app(scope, receive, send)
            return
        if named not in _CODINGS:
            await error_response(_unknown(named))(scope, receive, send)
            return
        gone = (b"content-encoding", b"content-length")
        # In place, because other middlewares look there for the router's results.
        scope["headers"] = [header for header in scope["headers"] if header[0] not in gone]
        body = _Decoded(receive, gzip=named != "deflate")
        await self._app(scope, body.receive, send)


class _Decoded:
    """Receives a body and passes it on decoded, in parts."""

    def __init__(self, receive: Receive, *, gzip: bool) -> None:
        self._receive = receive
        self._gzip = gzip
        self._stream: Any = None
        self._coded = b""
        """Bytes received but not yet decoded."""
        self._more = True
        self._full = False
        """Whether earlier input still has decoded output that was not returned."""
        self._over = False
        """Whether decoding has ended: the body is complete, or not in the declared coding."""
        self._sizes = [0, 0]
        """Bytes of input, and bytes of output."""

    async def receive(self) -> Message:
        """Return the next ASGI message.

        Raises:
            RequestError: the body is not in the coding that its header names.
        """
        if self._over:
            return await self._receive()
        while True:
            if self._coded or self._full:
                await asyncio.sleep(0)
            elif self._more:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._coded = message.get("body", b"")
                self._more = message.get("more_body", False)
                self._sizes[0] += len(self._coded)
            part = self._next()
            more = self._more or self._full or bool(self._coded)
            self._over = not more
            if part or not more:
                return {"type": "http.request", "body": part, "more_body": more}

    def _next(self) -> bytes:
        """Return some of the decoded bytes."""
        try:
            part = self._decode()
        except zlib.error as error:
            self._over = True
            kind = "gzip" if self._gzip else "deflate"
            raise RequestError(
                f"The body does not match Content-Encoding {kind}: {error}",
                code="invalid_encoding",
            ) from None
        return part

    def _decode(self) -> bytes:
        if self._coded and (self._stream is None or (self._gzip and self._stream.eof)):
            self._stream = zlib.decompressobj(self._window())  # a file can have several members
        if self._stream is None:
            return b""
        part: bytes = self._stream.decompress(self._coded, _PART_BYTES)
        self._coded = self._stream.unconsumed_tail or self._stream.unused_data
        self._full = len(part) == _PART_BYTES
        self._sizes[1] += len(part)
        if self._coded and self._stream.eof and not self._gzip:
            raise zlib.error("trailing bytes")
        if not (self._more or self._coded or self._full or self._stream.eof):
            raise zlib.error("truncated")
        if self._sizes[0] - len(self._coded) > self._sizes[1] + _MOST_OVERHEAD:
            raise zlib.error("larger than its decoded content")
        return part

    def _window(self) -> int:
        """Return zlib's parameter. By the standard deflate has zlib's frame, but some clients send none."""
        if self._gzip:
            return _GZIP
        first = self._coded[:2]
        whole = first[0] & 15 == _ZLIB_METHOD and int.from_bytes(first.ljust(2, b"\1")) % 31 == 0
        return _ZLIB if whole else _RAW


def _unknown(named: str) -> ApiError:
    known = ", ".join((*_CODINGS, _IDENTITY))
    return ApiError(
        415,
        f"Content-Encoding is {named[:80]!r}; supported are {known}, one at a time",
        code="unsupported_media_type",
        headers={
            "Accept-Encoding": "gzip, deflate",
        },
    )
