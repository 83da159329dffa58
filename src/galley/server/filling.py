"""Receives the rest of a large body where the app wants it, without a copy."""

import asyncio
from typing import Protocol


class Filled(Protocol):
    """The connection whose body is received, as :class:`galley.server.http_protocol.HttpProtocol`."""

    def filled(self, size: int) -> None:
        """Handle the arrival of this many bytes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""

    def eof_received(self) -> bool:
        """See :class:`asyncio.Protocol`."""

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""


class Filling(asyncio.BufferedProtocol):
    """The protocol of a connection until a buffer is full: the system writes into it."""

    def __init__(self, connection: Filled, buffer: memoryview) -> None:
        """Begin at the beginning of ``buffer``, which is no longer than what is left of the body."""
        self._connection = connection
        self._left = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: never beyond this body, to the request after it."""
        return self._left

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on that this many bytes were written."""
        self._left = self._left[nbytes:]
        self._connection.filled(nbytes)

    def eof_received(self) -> bool:
        """See :class:`asyncio.BufferedProtocol`."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._connection.resume_writing()
