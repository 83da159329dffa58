"""Authenticated frames over a TCP connection, between a server and a replica elsewhere.

:mod:`galley.links.handshake` has the form of frames and of the handshake.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from galley.links import handshake
from galley.links.handshake import (
    HANDSHAKE_SECONDS,
    HASH_BYTES,
    LENGTH,
    BadFrame,
    Handshake,
    Seals,
)
from galley.service.frames import MAX_FRAME_BYTES

MAX_UNSENT_BYTES: Final = MAX_FRAME_BYTES + 64 * 1024 * 1024
"""Bytes waiting to be sent at which the other side counts as gone: more than a single frame may have."""

_READ_BYTES: Final = 1 << 18


class Channel:
    """One end of a connection after the handshake."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seals: Seals
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._seals = seals

    def send(self, body: bytes) -> None:
        """Queue a frame; drop the connection if the other side does not read."""
        sealed = self._seals.seal(body)
        with suppress(ConnectionError, RuntimeError):
            self._writer.write(LENGTH.pack(len(body)) + body + sealed)
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort()

    async def frames(self) -> AsyncIterator[list[bytes]]:
        """Yield frames until the connection ends, each time all that have arrived.

        Raises:
            BadFrame: a frame does not come from the other side.
        """
        received = bytearray()
        while data := await self._read():
            received += data
            yield self._taken_from(received)

    async def _read(self) -> bytes:
        with suppress(ConnectionError):
            return await self._reader.read(_READ_BYTES)
        return b""

    def abort(self) -> None:
        """Drop the connection at once; :meth:`frames` then ends."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what is queued and close the connection."""
        self._writer.close()
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)

    def _taken_from(self, received: bytearray) -> list[bytes]:
        bodies: list[bytes] = []
        start = 0
        while start + LENGTH.size <= len(received):
            (length,) = LENGTH.unpack_from(received, start)
            if length > MAX_FRAME_BYTES:
                self.abort()
                raise BadFrame(f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
            body_at = start + LENGTH.size
            end = body_at + length + HASH_BYTES
            if end > len(received):
                break
            body = bytes(received[body_at : body_at + length])
            try:
                self._seals.check(body, received[body_at + length : end])
            except BadFrame:
                self.abort()
                raise
            bodies.append(body)
            start = end
        del received[:start]
        return bodies


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """Shake hands as :func:`galley.links.handshake.greet`, and raise its errors.

    Raises:
        OSError: the connection ended, or the other side did not answer in time.
    """
    return await _shake_hands(reader, writer, handshake.greet(token))


async def receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """Shake hands as :func:`galley.links.handshake.receive`, and raise its errors.

    Raises:
        OSError: the connection ended, or the other side did not answer in time.
    """
    return await _shake_hands(reader, writer, handshake.receive(token))


async def _shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, steps: Handshake
) -> Channel:
    step = next(steps)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        try:
            while True:
                if isinstance(step, int):
                    step = steps.send(await _exactly(reader, step))
                else:
                    writer.write(step)
                    await writer.drain()
                    step = next(steps)
        except StopIteration as done:
            return Channel(reader, writer, done.value)


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except EOFError as error:
        raise BadFrame("the other side closed the connection") from error
