"""The handshake of a connection between machines, and the seals of its frames; without any I/O.

Both sides prove that they have the same token, without sending it: each sends a random number, and a hash
of both numbers keyed with the token. Such hashes are also the keys of this connection, with which every
frame is authenticated, so that nobody can change, repeat or insert frames. Frames are not encrypted; TLS
does that.

    length (4 bytes, little-endian) | body | keyed hash of the frame's number and body (16 bytes)
"""

import hmac
import secrets
import struct
from collections.abc import Generator
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from galley import __version__
from galley.errors import SettingsError

Frame = TypeVar("Frame")

HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of the handshake."""

LENGTH: Final = struct.Struct("<I")
HASH_BYTES: Final = 16
_GREETING_BYTES: Final = 1024
"""Maximum size of a frame of the handshake."""

_NUMBER: Final = struct.Struct("<Q")
_NONCE_BYTES: Final = 32


class BadFrame(ConnectionError):
    """A frame is too large, or does not come from the other side."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame of each side: its random number, and its version of Galley."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]
    version: str

    @classmethod
    def new(cls) -> "Hello":
        """Return one with a new random number."""
        return cls(secrets.token_bytes(_NONCE_BYTES), __version__)


class Proof(msgspec.Struct, frozen=True):
    """The second frame of each side; ``refusal`` states why the side that accepts refuses."""

    proof: bytes = b""
    refusal: str = ""

    @property
    def reason(self) -> str:
        """The refusal for logs and errors: whoever sent it has not proved that it has the token."""
        return "".join(c for c in self.refusal if c.isprintable())


class Keys:
    """The proofs and the keys of one connection, from the token and both random numbers."""

    def __init__(self, token: bytes, caller: bytes, replica: bytes) -> None:
        def derived(use: bytes) -> bytes:
            return hmac.digest(token, use + caller + replica, "sha256")

        self.caller_proof = derived(b"galley caller proof")
        self.replica_proof = derived(b"galley replica proof")
        self.from_caller = derived(b"galley frames of caller")
        self.from_replica = derived(b"galley frames of replica")

    def refusal(self, caller: Hello, proof: Proof) -> str:
        """Return why the side that accepts refuses the caller; empty: it does not."""
        if not hmac.compare_digest(proof.proof, self.caller_proof):
            return "the token of cluster_token_file is another one; all machines need the same file"
        if caller.version != __version__:
            return f"it runs Galley {__version__}, the caller {caller.version}; all machines need the same"
        return ""


class Seals:
    """The keys of a connection's directions, and how many frames each has had."""

    def __init__(self, sends: bytes, receives: bytes) -> None:
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    def seal(self, *parts: "bytes | bytearray | memoryview") -> bytes:
        """Return the hash that follows the next frame to be sent, whose body is the parts."""
        self._sent += 1
        return seal(self._sends, self._sent - 1, *parts)

    def check(self, body: "bytes | bytearray | memoryview", sealed: "bytes | bytearray") -> None:
        """Raise BadFrame unless this is the next frame of the other side, and the hash that follows it."""
        if not hmac.compare_digest(seal(self._receives, self._received, body), sealed):
            raise BadFrame("a frame was changed on its way")
        self._received += 1


def seal(key: bytes, number: int, *parts: "bytes | bytearray | memoryview") -> bytes:
    """Return the keyed hash of the connection's frame with this number and body."""
    sealed = blake2b(_NUMBER.pack(number), key=key, digest_size=HASH_BYTES)
    for part in parts:
        sealed.update(part)
    return sealed.digest()


Handshake: TypeAlias = "Generator[bytes | int, bytes | bytearray, Seals]"
"""The steps of one side: bytes to send, or the number of bytes to read, which it is then given."""


def greet(token: bytes) -> Handshake:
    """Shake hands as the side that has connected.

    Raises:
        SettingsError: the other side refuses, or does not have the token.
        BadFrame: it is no Galley.
    """
    ours = Hello.new()
    yield _written(ours)
    theirs = yield from _read(Hello)
    keys = Keys(token, ours.nonce, theirs.nonce)
    yield _written(Proof(keys.caller_proof))
    answer = yield from _read(Proof)
    if answer.refusal:
        raise SettingsError(f"the other side refuses the connection: {answer.reason}")
    if not hmac.compare_digest(answer.proof, keys.replica_proof):
        raise SettingsError("the other side does not have the token of cluster_token_file")
    return Seals(keys.from_caller, keys.from_replica)


def receive(token: bytes) -> Handshake:
    """Shake hands as the side that has accepted the connection.

    Raises:
        SettingsError: the other side does not have the token, or is another version of Galley; the
            refusal has been sent to it.
        BadFrame: it is no Galley.
    """
    ours = Hello.new()
    theirs = yield from _read(Hello)
    yield _written(ours)
    keys = Keys(token, theirs.nonce, ours.nonce)
    refusal = keys.refusal(theirs, (yield from _read(Proof)))
    if refusal:
        yield _written(Proof(refusal=refusal))
        raise SettingsError(refusal)
    yield _written(Proof(keys.replica_proof))
    return Seals(keys.from_replica, keys.from_caller)


def _written(frame: Hello | Proof) -> bytes:
    body = msgspec.msgpack.encode(frame)
    return LENGTH.pack(len(body)) + body


def _read(kind: type[Frame]) -> "Generator[int, bytes | bytearray, Frame]":
    (length,) = LENGTH.unpack((yield LENGTH.size))
    if length > _GREETING_BYTES:
        raise BadFrame("the other side is not Galley: its first frame is too large")
    try:
        return msgspec.msgpack.decode((yield length), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame("the other side is not Galley") from error
