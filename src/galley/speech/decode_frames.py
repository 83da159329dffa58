"""What travels between a process and its decoder of recordings.

Each message is one packet of a ``SOCK_SEQPACKET`` socket: a dying process leaves no half of one.
"""

from typing import Final

import msgspec

from galley.speech.sources import RawPcm

BLOCK_SAMPLES: Final = 16_384
"""Of one message, at most: 64 KiB."""
MOST_BYTES: Final = 128 * 1024
"""Of any message."""


class Decode(msgspec.Struct, tag="decode", frozen=True):
    """A recording to decode; the arguments of :class:`galley.speech.audio.Recording`, and the budget.

    Beside it travel two descriptors: the file's, and that of the socket to answer on.

    Attributes:
        offset: where in the file the recording begins.
        seconds: of CPU time.
        max_bytes: of memory.
    """

    name: str
    offset: int
    raw: RawPcm | None
    normalize: bool
    max_seconds: float | None
    track: int | None
    seconds: float
    max_bytes: int


class Opened(msgspec.Struct, tag="opened", frozen=True):
    """The first answer: the recording can be read. ``duration``: as the file states it."""

    duration: float | None


class Block(msgspec.Struct, tag="block", frozen=True):
    """At most ``BLOCK_SAMPLES`` samples, float32 of this machine."""

    samples: bytes


class Done(msgspec.Struct, tag="done", frozen=True):
    """The last answer, after the last block."""

    warnings: list[str]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A RequestError. ``too_long``: it is an AudioTooLong."""

    message: str
    param: str | None
    too_long: bool


class OutOfMemory(msgspec.Struct, tag="out_of_memory", frozen=True):
    """The recording wants more memory than its budget."""


class Died(msgspec.Struct, tag="died", frozen=True):
    """The process that decoded has ended by that signal, or with that exit code."""

    signal: int
    code: int


Answer = Opened | Block | Done | Refused | OutOfMemory | Died

_encoder = msgspec.msgpack.Encoder()
_job: msgspec.msgpack.Decoder[Decode] = msgspec.msgpack.Decoder(Decode)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Decode | Answer) -> bytes:
    """One packet."""
    return _encoder.encode(message)


def decode_job(packet: bytes) -> Decode:
    """Raises ``msgspec.DecodeError`` on anything that :func:`encode` did not write."""
    return _job.decode(packet)


def decode_answer(packet: bytes) -> Answer:
    """Raises ``msgspec.DecodeError`` on anything that :func:`encode` did not write."""
    return _answer.decode(packet)
