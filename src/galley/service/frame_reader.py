"""The bytes that an engine sends, received into one buffer.

With every read, asyncio's streams allocate 256 KiB, which glibc maps and unmaps. For a step's few hundred
bytes, that takes longer than all other work on them.
"""

import asyncio
from typing import Final, cast

from galley.service.arrival import Arrival

_READ_BYTES: Final = 1 << 18
"""Bytes received at a time, and the limit of those that wait for the reader."""


class FrameReader(asyncio.BufferedProtocol):
    """Keeps what arrives on a connection until its one reader takes it.

    Attributes:
        received: bytes that the reader has not taken off yet.
    """

    def __init__(self) -> None:
        """Create it for a connection that has yet to be made."""
        self.received = bytearray()
        self._buffer = bytearray(_READ_BYTES)
        self._new_bytes = 0  # since the last look
        self._ended = self._paused = False
        self._arrival = Arrival()
        self._transport: asyncio.Transport | None = None

    async def more(self) -> bool:
        """Wait until more has arrived; return False once the connection has ended."""
        if not (self._new_bytes or self._ended):
            await self._arrival.wait()
        arrived, self._new_bytes = self._new_bytes, 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return arrived > 0

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        # Those of uvloop, which Ray Serve uses, are no instances of it.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        """See :class:`asyncio.BufferedProtocol`."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self.received += memoryview(self._buffer)[:nbytes]
        self._new_bytes += nbytes
        if self._new_bytes >= _READ_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._arrival.wake()

    def eof_received(self) -> bool:
        """Keep the other direction open, which its owner closes."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = None
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrival.wake()
