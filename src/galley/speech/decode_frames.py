"""The messages between a process and its decoder of recordings, and how sockets carry them.

Messages go over stream sockets with their length in front, because macOS has no ``SOCK_SEQPACKET``. A fork
may die in the middle of a message, so its death is reported on another socket (:class:`Died`).
"""

import socket
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from galley.speech.sources import RawPcm

BLOCK_SAMPLES: Final = 16_384
"""Maximum number of samples in one message (64 KiB)."""
MOST_BYTES: Final = 128 * 1024
"""Maximum size of a message."""
TAKEN: Final = b"+"
"""Sent back for each :class:`Decode`. Until then, macOS may discard descriptors that the sender closes."""
DESCRIPTORS: Final = 3
"""Number of descriptors that are sent with a :class:`Decode`."""
_LENGTH: Final = struct.Struct("<I")


class Decode(msgspec.Struct, tag="decode", frozen=True):
    """A recording to decode: the arguments of :class:`galley.speech.audio.Recording` and the budget.

    Three descriptors are sent with the message: the file, the socket for the answers, which the fork alone
    keeps, and the one for :class:`Died`, which its parent alone keeps.

    Attributes:
        offset: offset in the file at which the recording begins.
        seconds: budget of CPU time, in seconds.
        max_bytes: budget of memory, in bytes.
    """

    name: str
    offset: int
    raw: RawPcm | None
    normalize: bool
    max_seconds: float | None
    track: int | None
    channel: int | None
    apart: bool
    seconds: float
    max_bytes: int


class Opened(msgspec.Struct, tag="opened", frozen=True):
    """The first answer: the recording can be read.

    Attributes:
        duration: duration in seconds that the file states; None if it states none.
        channels: number of channels of the track.
    """

    duration: float | None
    channels: int


class Block(msgspec.Struct, tag="block", frozen=True):
    """At most ``BLOCK_SAMPLES`` samples, float32 in native byte order; two channels are interleaved."""

    samples: bytes


class Done(msgspec.Struct, tag="done", frozen=True):
    """The last answer, after the last block."""

    warnings: list[str]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A RequestError, which is an AudioTooLong if ``too_long`` is set."""

    message: str
    param: str | None
    too_long: bool


class OutOfMemory(msgspec.Struct, tag="out_of_memory", frozen=True):
    """The recording needs more memory than its budget."""


class Died(msgspec.Struct, tag="died", frozen=True):
    """The fork ended by this signal or with this exit code."""

    signal: int
    code: int


Answer = Opened | Block | Done | Refused | OutOfMemory | Died

_encoder = msgspec.msgpack.Encoder()
_job: msgspec.msgpack.Decoder[Decode] = msgspec.msgpack.Decoder(Decode)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def send(to: socket.socket, message: Decode | Answer, descriptors: Sequence[int] = ()) -> None:
    """Send a message, and copies of descriptors with it.

    Raises:
        OSError: the other side is closed, or did not read in time.
    """
    body = _encoder.encode(message)
    length = _LENGTH.pack(len(body))
    if descriptors:
        # They arrive with these bytes; the body may arrive in parts.
        socket.send_fds(to, [length], descriptors)
        to.sendall(body)
    else:
        to.sendall(length + body)


def receive_answer(connection: socket.socket) -> Answer | None:
    """Return the next answer; None if the other side ended before the whole answer was sent.

    Raises:
        OSError: no answer came in time.
        msgspec.DecodeError: the other side did not use :func:`send`.
    """
    body = _body(connection, _exactly(connection, _LENGTH.size))
    return _answer.decode(body) if body else None


def receive_job(connection: socket.socket) -> tuple[Decode, list[int]] | None:
    """Return the next job and the descriptors that were sent with it; None if the other side has closed.

    There are fewer descriptors than were sent if this process has too many open files.
    """
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, DESCRIPTORS)
    body = _body(connection, length)
    return (_job.decode(body), descriptors) if body else None


def _body(connection: socket.socket, length: bytes | bytearray) -> bytearray:
    """Return what follows the length; empty if the other side ended before it was sent."""
    if len(length) < _LENGTH.size:
        return bytearray()
    (count,) = _LENGTH.unpack(length)
    if count > MOST_BYTES:
        raise msgspec.DecodeError(f"a message of {count} bytes; at most {MOST_BYTES} are allowed")
    return _exactly(connection, count)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    """Return this many bytes; none if the other side ended before."""
    received = bytearray(count)
    rest = memoryview(received)
    while rest:
        arrived = connection.recv_into(rest)
        if not arrived:
            return bytearray()
        rest = rest[arrived:]
    return received
