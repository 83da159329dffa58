"""A stored answer: what the engine put out, when, for whom, and a checksum over all of it."""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from galley.types import Embed, EngineRequest, Output, Predict, Tokens

_MAGIC: Final = b"GRC1"
_SUM_BYTES: Final = 16


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        key: digest of all that shapes the answer, see :mod:`galley.cache.keys`.
        kind: "text", "vector", "tensors" or "transcript".
        model: the model's name in the API, followed by the adapter's if there is one.
        folder: the folder or file from which the model was loaded.
        tenant: the tenant whose requests it may answer.
        tag: the label that the request gave it.
        created, expires: Unix times; it is not used from ``expires`` on.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens generated.
        engine_seconds: engine time that the answer took, and each hit saves.
        body: the answer, encoded by its kind.
        question: the text that other questions are compared with; "": only equal requests get the answer.
        scope: digest of all else that shapes the answer, see :mod:`galley.cache.semantic`.
        vector: the question's, see :func:`galley.cache.nearest.packed`.
    """

    key: bytes
    kind: str
    model: str
    folder: str = ""
    tenant: str = ""
    tag: str = ""
    created: float
    expires: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    engine_seconds: float = 0.0
    body: bytes
    question: str = ""
    scope: bytes = b""
    vector: bytes = b""


_encoder: Final = msgspec.msgpack.Encoder()
_entries: Final = msgspec.msgpack.Decoder(Entry)
_outputs: Final = msgspec.msgpack.Decoder(list[Output])


def pack(entry: Entry) -> bytes:
    """Return the entry as bytes that :func:`unpack` checks."""
    content = _encoder.encode(entry)
    return _MAGIC + _sum(content) + content


def unpack(data: bytes, key: bytes) -> Entry | None:
    """Return the entry in ``data``; None if it is damaged or not the one of ``key``."""
    begin = len(_MAGIC) + _SUM_BYTES
    content = data[begin:]
    if data[:begin] != _MAGIC + _sum(content):
        return None
    try:
        entry = _entries.decode(content)
    except msgspec.MsgspecError:  # of another version, whose fields differ
        return None
    return entry if entry.key == key else None


def outputs_of(entry: Entry) -> list[Output] | None:
    """Return the outputs in an entry's body; None if it does not have any."""
    try:
        return _outputs.decode(entry.body)
    except msgspec.MsgspecError:
        return None


def body_of(outputs: Sequence[Output]) -> bytes:
    """Return the body of an entry of any kind but "transcript"."""
    return _encoder.encode(outputs)


def size_of(entry: Entry) -> int:
    """Return the size of what a store keeps of an entry, roughly."""
    return len(entry.body) + len(entry.vector) + len(entry.question)


def kind_of(request: EngineRequest) -> str:
    """Return the kind of entry that answers a request."""
    if isinstance(request.payload, Predict):
        return "tensors"
    return "vector" if isinstance(request.payload, Embed) else "text"


def tokens_in(outputs: Sequence[Output]) -> list[int]:
    """Return the tokens of some outputs."""
    return [t for o in outputs if isinstance(o.result, Tokens) for t in o.result.tokens]


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SUM_BYTES).digest()
