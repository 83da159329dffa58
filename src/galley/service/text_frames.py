"""The messages between the server's process and a text worker, framed as in ``frames.py``."""

from typing import Any, Final

import msgspec

from galley.service.frames import HEADER
from galley.types import Grammar

LOAD_SECONDS: Final = 60.0
LOAD_BYTES: Final = 2 * 1024**3
"""A worker's budget for loading a tokenizer and a chat template, which are programs in the checkpoint."""


class TextStart(msgspec.Struct, tag="start", frozen=True):
    """The first frame: the checkpoint's folder, and the budgets of each job and of loading."""

    folder: str
    seconds: float
    max_bytes: int
    load_seconds: float = LOAD_SECONDS
    load_bytes: int = LOAD_BYTES


class EncodeChat(msgspec.Struct, tag="chat", frozen=True):
    """Encode a conversation to token ids with :meth:`ChatTemplate.encode`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    add_generation_prompt: bool
    continue_last: bool
    context: int | None


class EncodeTexts(msgspec.Struct, tag="texts", frozen=True):
    """Encode each text to token ids with :meth:`Tokenizer.encode_all`."""

    texts: list[str]
    add_special_tokens: bool
    context: int | None


class CutTexts(msgspec.Struct, tag="cut", frozen=True):
    """Encode each text to truncated token ids with :meth:`Tokenizer.encode_cut`."""

    texts: list[str]
    most: int


class EncodePairs(msgspec.Struct, tag="pairs", frozen=True):
    """Encode pairs of one text with each of several others, with :meth:`Tokenizer.encode_pairs`."""

    first: str
    seconds: list[str]
    most: int | None
    most_second: int | None


class DecodeIds(msgspec.Struct, tag="decode", frozen=True):
    """Decode token ids to text, special tokens included."""

    ids: list[int]


class CheckGrammar(msgspec.Struct, tag="grammar", frozen=True):
    """Compile a grammar with :func:`galley.grammar.check.check`; errors name ``field``."""

    grammar: Grammar
    field: str


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The worker's first frame: it accepts jobs."""


class Unusable(msgspec.Struct, tag="unusable", frozen=True):
    """The worker's first and only frame if the tokenizer or chat template cannot be used."""

    message: str


class Compiled(msgspec.Struct, tag="compiled", frozen=True):
    """The job's grammar, checked and compiled."""

    grammar: Grammar


class Ids(msgspec.Struct, tag="ids", frozen=True):
    """Token ids, as one list for each text of the job, or one for its conversation."""

    ids: list[list[int]]


class Decoded(msgspec.Struct, tag="decoded", frozen=True):
    """The text of the job's ids."""

    text: str


class Pairs(msgspec.Struct, tag="paired", frozen=True):
    """Token ids of each pair, with the index at which tokens of type 1 begin."""

    pairs: list[tuple[list[int], int]]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A RequestError; ``budget``: the job exceeded its time or memory budget."""

    message: str
    param: str | None
    code: str | None
    budget: bool = False


class OutOfMemory(msgspec.Struct, tag="out_of_memory", frozen=True):
    """The job exceeded its memory budget. If native code exceeds it, the process dies instead."""


Job = EncodeChat | EncodeTexts | CutTexts | EncodePairs | DecodeIds | CheckGrammar
ToText = TextStart | Job
FromText = Loaded | Unusable | Ids | Decoded | Pairs | Compiled | Refused | OutOfMemory

_encoder = msgspec.msgpack.Encoder()
_to_text: msgspec.msgpack.Decoder[ToText] = msgspec.msgpack.Decoder(ToText)
_from_text: msgspec.msgpack.Decoder[FromText] = msgspec.msgpack.Decoder(FromText)


def encode(frame: ToText | FromText) -> bytes:
    """Return the encoded frame with its length in front, ready to be written."""
    body = _encoder.encode(frame)
    return HEADER.pack(len(body)) + body


def decode_to_text(body: bytes) -> ToText:
    """Decode a frame for a text worker.

    Raises:
        msgspec.DecodeError: :func:`encode` did not write it.
    """
    return _to_text.decode(body)


def decode_from_text(body: bytes) -> FromText:
    """Decode a frame from a text worker.

    Raises:
        msgspec.DecodeError: :func:`encode` did not write it.
    """
    return _from_text.decode(body)
