"""Authenticated frames over a TCP connection, between a server and a replica elsewhere.

:mod:`galley.links.handshake` has the form of frames and of the handshake.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from galley.errors import SettingsError
from galley.links.handshake import (
    GREETING_BYTES,
    HANDSHAKE_SECONDS,
    HASH_BYTES,
    LENGTH,
    BadFrame,
    Hello,
    Keys,
    Proof,
    seal,
)
from galley.service.frames import MAX_FRAME_BYTES

Frame = TypeVar("Frame")

MAX_UNSENT_BYTES: Final = MAX_FRAME_BYTES + 64 * 1024 * 1024
"""Bytes waiting to be sent at which the other side counts as gone: more than a single frame may have."""

_READ_BYTES: Final = 1 << 18


class Channel:
    """One end of a connection after the handshake."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        sends: bytes,
        receives: bytes,
    ) -> None:
        """Create it; ``sends`` and ``receives`` are the keys of each direction."""
        self._reader = reader
        self._writer = writer
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    def send(self, body: bytes) -> None:
        """Queue a frame; drop the connection if the other side does not read."""
        sealed = seal(self._sends, self._sent, body)
        self._sent += 1
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
            sealed = seal(self._receives, self._received, body)
            if not hmac.compare_digest(sealed, received[body_at + length : end]):
                self.abort()
                raise BadFrame("a frame was changed on its way")
            self._received += 1
            bodies.append(body)
            start = end
        del received[:start]
        return bodies


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """Shake hands as the side that has connected.

    Raises:
        SettingsError: the replica refuses, or does not have the token.
        OSError: the connection ended, or the other side did not answer in time.
    """
    ours = Hello.new()
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        _write(writer, ours)
        theirs = await _read(reader, Hello)
        keys = Keys(token, ours.nonce, theirs.nonce)
        _write(writer, Proof(keys.caller_proof))
        answer = await _read(reader, Proof)
    if answer.refusal:
        raise SettingsError(f"the replica refuses the connection: {answer.reason}")
    if not hmac.compare_digest(answer.proof, keys.replica_proof):
        raise SettingsError("the replica does not have the token of cluster_token_file")
    return Channel(reader, writer, sends=keys.from_caller, receives=keys.from_replica)


async def receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """Shake hands as the replica.

    Raises:
        SettingsError: the other side does not have the token, or is another version of Galley; the
            refusal has been sent to it.
        OSError: the connection ended, or the other side did not answer in time.
    """
    ours = Hello.new()
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        theirs = await _read(reader, Hello)
        _write(writer, ours)
        keys = Keys(token, theirs.nonce, ours.nonce)
        proof = await _read(reader, Proof)
        refusal = keys.refusal(theirs, proof)
        if refusal:
            _write(writer, Proof(refusal=refusal))
            await writer.drain()
            raise SettingsError(refusal)
        _write(writer, Proof(keys.replica_proof))
    return Channel(reader, writer, sends=keys.from_replica, receives=keys.from_caller)


def _write(writer: asyncio.StreamWriter, frame: Hello | Proof) -> None:
    body = msgspec.msgpack.encode(frame)
    writer.write(LENGTH.pack(len(body)) + body)


async def _read(reader: asyncio.StreamReader, kind: type[Frame]) -> Frame:
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > GREETING_BYTES:
            raise BadFrame("the other side is no Galley: its first frame is too large")
        return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)
    except (EOFError, msgspec.DecodeError) as error:
        raise BadFrame("the other side is no Galley, or closed the connection") from error
