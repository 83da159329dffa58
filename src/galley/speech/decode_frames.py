"""The messages between a process and its decoder of recordings.

Each message is one packet of a ``SOCK_SEQPACKET`` socket, so a dying process leaves no partial message.
"""

from typing import Final

import msgspec

from galley.speech.sources import RawPcm

BLOCK_SAMPLES: Final = 16_384
"""Maximum number of samples in one message (64 KiB)."""
MOST_BYTES: Final = 128 * 1024
"""Maximum size of a message."""


class Decode(msgspec.Struct, tag="decode", frozen=True):
    """A recording to decode: the arguments of :class:`galley.speech.audio.Recording` and the budget.

    Two descriptors are sent with the message: the file, and the socket for the answers.

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
    """The decoding process ended by this signal or with this exit code."""

    signal: int
    code: int


Answer = Opened | Block | Done | Refused | OutOfMemory | Died

_encoder = msgspec.msgpack.Encoder()
_job: msgspec.msgpack.Decoder[Decode] = msgspec.msgpack.Decoder(Decode)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Decode | Answer) -> bytes:
    """Encode a message as one packet."""
    return _encoder.encode(message)


def decode_job(packet: bytes) -> Decode:
    """Decode a job. Raises ``msgspec.DecodeError`` if :func:`encode` did not write the packet."""
    return _job.decode(packet)


def decode_answer(packet: bytes) -> Answer:
    """Decode an answer. Raises ``msgspec.DecodeError`` if :func:`encode` did not write the packet."""
    return _answer.decode(packet)
