"""What travels between the server's process and a text worker, framed as in ``frames.py``."""

from typing import Any

import msgspec

from galley.service.frames import HEADER
from galley.types import Grammar


class TextStart(msgspec.Struct, tag="start", frozen=True):
    """The first frame: the checkpoint's folder, and the budget of each job."""

    folder: str
    seconds: float
    max_bytes: int


class EncodeChat(msgspec.Struct, tag="chat", frozen=True):
    """Token ids of a conversation, as :meth:`ChatTemplate.encode` makes them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    add_generation_prompt: bool
    continue_last: bool
    context: int | None


class EncodeTexts(msgspec.Struct, tag="texts", frozen=True):
    """Token ids of each text, as :meth:`Tokenizer.encode_all` makes them."""

    texts: list[str]
    add_special_tokens: bool
    context: int | None


class CutTexts(msgspec.Struct, tag="cut", frozen=True):
    """Token ids of each text, as :meth:`Tokenizer.encode_cut` makes them."""

    texts: list[str]
    most: int


class EncodePairs(msgspec.Struct, tag="pairs", frozen=True):
    """Token ids of a text with each of others, as :meth:`Tokenizer.encode_pairs` makes them."""

    first: str
    seconds: list[str]
    most: int | None
    most_second: int | None


class CheckGrammar(msgspec.Struct, tag="grammar", frozen=True):
    """A grammar as :func:`galley.grammar.check.check` compiles it; ``field`` is what errors name."""

    grammar: Grammar
    field: str


class Compiled(msgspec.Struct, tag="compiled", frozen=True):
    """The grammar of the job, checked."""

    grammar: Grammar


class Ids(msgspec.Struct, tag="ids", frozen=True):
    """Token ids: one list for each text of the job, or one for its conversation."""

    ids: list[list[int]]


class Pairs(msgspec.Struct, tag="paired", frozen=True):
    """Token ids of each pair, and where tokens of type 1 begin."""

    pairs: list[tuple[list[int], int]]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A RequestError."""

    message: str
    param: str | None
    code: str | None


class OutOfMemory(msgspec.Struct, tag="out_of_memory", frozen=True):
    """The job wants more memory than its budget. Where native code does, the process dies instead."""


Job = EncodeChat | EncodeTexts | CutTexts | EncodePairs | CheckGrammar
ToText = TextStart | Job
FromText = Ids | Pairs | Compiled | Refused | OutOfMemory

_encoder = msgspec.msgpack.Encoder()
_to_text: msgspec.msgpack.Decoder[ToText] = msgspec.msgpack.Decoder(ToText)
_from_text: msgspec.msgpack.Decoder[FromText] = msgspec.msgpack.Decoder(FromText)


def encode(frame: ToText | FromText) -> bytes:
    """The frame with its length in front, ready to be written."""
    body = _encoder.encode(frame)
    return HEADER.pack(len(body)) + body


def decode_to_text(body: bytes) -> ToText:
    """Raises ``msgspec.DecodeError`` on anything that :func:`encode` did not write."""
    return _to_text.decode(body)


def decode_from_text(body: bytes) -> FromText:
    """Raises ``msgspec.DecodeError`` on anything that :func:`encode` did not write."""
    return _from_text.decode(body)
