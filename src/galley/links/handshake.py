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
from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from galley import __version__

HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of the handshake."""

LENGTH: Final = struct.Struct("<I")
HASH_BYTES: Final = 16
GREETING_BYTES: Final = 1024
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


def seal(key: bytes, number: int, *parts: "bytes | bytearray | memoryview") -> bytes:
    """Return the keyed hash of the connection's frame with this number and body."""
    sealed = blake2b(_NUMBER.pack(number), key=key, digest_size=HASH_BYTES)
    for part in parts:
        sealed.update(part)
    return sealed.digest()
