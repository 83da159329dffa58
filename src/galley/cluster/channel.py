"""Authenticated frames over a TCP connection, between a server and a replica elsewhere.

Both sides prove that they have the same token, without sending it: each sends a random number, and a hash
of both numbers keyed with the token. Such hashes are also the keys of this connection, with which every
frame is authenticated, so that nobody can change, repeat or insert frames. Frames are not encrypted; TLS
does that.

    length (4 bytes, little-endian) | body | keyed hash of the frame's number and body (16 bytes)
"""

import asyncio
import hmac
import secrets
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import blake2b
from typing import Annotated, Final, TypeVar

import msgspec

from galley import __version__
from galley.errors import SettingsError
from galley.service.frames import MAX_FRAME_BYTES

Frame = TypeVar("Frame")

HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of the handshake."""

MAX_UNSENT_BYTES: Final = MAX_FRAME_BYTES + 64 * 1024 * 1024
"""Bytes waiting to be sent at which the other side counts as gone: more than a single frame may have."""

_READ_BYTES: Final = 1 << 18
_LENGTH: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_HASH_BYTES: Final = 16
_NONCE_BYTES: Final = 32
_GREETING_BYTES: Final = 1024
"""Maximum size of a frame of the handshake."""


class BadFrame(ConnectionError):
    """A frame is too large, or does not come from the other side."""


class _Hello(msgspec.Struct, frozen=True):
    """The first frame of each side: its random number, and its version of Galley."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]
    version: str


class _Proof(msgspec.Struct, frozen=True):
    """The second frame of each side; ``refusal`` states why the replica refuses."""

    proof: bytes = b""
    refusal: str = ""


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
        seal = _seal(self._sends, self._sent, body)
        self._sent += 1
        with suppress(ConnectionError, RuntimeError):
            self._writer.write(_LENGTH.pack(len(body)) + body + seal)
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
        while start + _LENGTH.size <= len(received):
            (length,) = _LENGTH.unpack_from(received, start)
            if length > MAX_FRAME_BYTES:
                self.abort()
                raise BadFrame(f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
            body_at = start + _LENGTH.size
            end = body_at + length + _HASH_BYTES
            if end > len(received):
                break
            body = bytes(received[body_at : body_at + length])
            seal = _seal(self._receives, self._received, body)
            if not hmac.compare_digest(seal, received[body_at + length : end]):
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
    ours = _Hello(secrets.token_bytes(_NONCE_BYTES), __version__)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        _write(writer, ours)
        theirs = await _read(reader, _Hello)
        keys = _Keys(token, ours.nonce, theirs.nonce)
        _write(writer, _Proof(keys.caller_proof))
        answer = await _read(reader, _Proof)
    if answer.refusal:
        raise SettingsError(f"the replica refuses the connection: {answer.refusal}")
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
    ours = _Hello(secrets.token_bytes(_NONCE_BYTES), __version__)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        theirs = await _read(reader, _Hello)
        _write(writer, ours)
        keys = _Keys(token, theirs.nonce, ours.nonce)
        proof = await _read(reader, _Proof)
        refusal = ""
        if not hmac.compare_digest(proof.proof, keys.caller_proof):
            refusal = "the token of cluster_token_file is another one"
        elif theirs.version != __version__:
            refusal = f"it runs Galley {__version__}, the server {theirs.version}"
        if refusal:
            _write(writer, _Proof(refusal=refusal))
            await writer.drain()
            raise SettingsError(refusal)
        _write(writer, _Proof(keys.replica_proof))
    return Channel(reader, writer, sends=keys.from_replica, receives=keys.from_caller)


class _Keys:
    """The proofs and the keys of one connection, from the token and both random numbers."""

    def __init__(self, token: bytes, caller: bytes, replica: bytes) -> None:
        def derived(use: bytes) -> bytes:
            return hmac.digest(token, use + caller + replica, "sha256")

        self.caller_proof = derived(b"galley caller proof")
        self.replica_proof = derived(b"galley replica proof")
        self.from_caller = derived(b"galley frames of caller")
        self.from_replica = derived(b"galley frames of replica")


def _seal(key: bytes, number: int, body: bytes) -> bytes:
    sealed = blake2b(_NUMBER.pack(number), key=key, digest_size=_HASH_BYTES)
    sealed.update(body)
    return sealed.digest()


def _write(writer: asyncio.StreamWriter, frame: _Hello | _Proof) -> None:
    body = msgspec.msgpack.encode(frame)
    writer.write(_LENGTH.pack(len(body)) + body)


async def _read(reader: asyncio.StreamReader, kind: type[Frame]) -> Frame:
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _GREETING_BYTES:
            raise BadFrame("the other side is no Galley: its first frame is too large")
        return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)
    except (EOFError, msgspec.DecodeError) as error:
        raise BadFrame("the other side is no Galley, or closed the connection") from error
