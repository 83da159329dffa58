"""Fuzz target: bodies of requests, events of live sessions and multipart forms.

The first byte selects how the rest is parsed. JSON goes through ``parse_json`` and ``validate`` of
``galley.protocols.common`` and the struct's own rules; a form through the parser that the server uses,
where the first line is the Content-Type header.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.types import Message

from galley.errors import GalleyError, RequestError
from galley.protocols.common.errors import MAX_MESSAGE, envelope
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.http.budget import ByteBudget
from galley.protocols.http.forms import read_form
from galley.protocols.openai.audio.schemas import TranscriptionRequest, TranslationRequest
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.realtime.schemas import (
    EVENTS,
    FlatSessionUpdate,
    SessionUpdate,
    Settings,
)
from galley.protocols.openai.tokens.schemas import DetokenizeRequest, TokenizeRequest
from galley.speech.options import TurnOptions

_BUDGET: Final = ByteBudget(1 << 20, of="bodies", setting="--max-upload-bytes", code="")
"""Budget of bodies; a leak ends the run."""
_LOOP: Final = asyncio.new_event_loop()
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it reports each invalid character


def fuzz(data: bytes) -> None:
    """Read ``data`` as the server does. A refusal must be short, and name no field longer than 200."""
    if not data:
        return
    read = READERS[(data[0] - ord("0")) % len(READERS)]
    try:
        read(data[1:])
    except GalleyError as error:
        message = envelope(error)["error"]["message"] or ""
        if not 0 < len(message) <= MAX_MESSAGE:
            raise AssertionError(f"an error of {len(message)} characters") from error
        if isinstance(error, RequestError) and len(error.param or "") > 300:
            raise AssertionError(
                f"a field's name of {len(error.param or '')} characters"
            ) from error


def mutate(data: bytes, source: random.Random) -> bytes | None:
    """Return a JSON input with one value replaced, removed, doubled or renamed; None if it is not JSON."""
    try:
        value = json.loads(data[1:])
        if not isinstance(value, dict | list):
            return None
        holder, key = source.choice(list(_places(value)))
        _change(holder, key, source)
        return data[:1] + json.dumps(value).encode()
    except (ValueError, IndexError, RecursionError):
        return None


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a JSON value with each of its keys or indices."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _change(holder: Any, key: Any, source: random.Random) -> None:
    match source.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[json.loads(source.choice(_names()))] = holder.pop(key)
        case 2:
            other = json.loads(source.choice(_names())) if source.random() < 0.5 else "new"
            nested = source.choice(([holder[key]], {other: holder[key]}))
            holder[key] = nested
        case 3 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case _:
            holder[key] = source.choice((*_ODD_VALUES, json.loads(source.choice(_names()))))


def _chat(body: bytes) -> None:
    parsed = validate(ChatRequest, parse_json(body))
    parsed.sampling()
    for message in parsed.messages:
        message.plain()


def _completion(body: bytes) -> None:
    parsed = validate(CompletionRequest, parse_json(body))
    parsed.sampling()
    parsed.prompts()


def _tokenize(body: bytes) -> None:
    for message in validate(TokenizeRequest, parse_json(body)).messages or []:
        message.plain()


def _detokenize(body: bytes) -> None:
    validate(DetokenizeRequest, parse_json(body))


def _event(body: bytes) -> None:
    """Parse an event as server/realtime.py does, up to the audio."""
    event = parse_json(body, what="The event")
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in EVENTS:
        return
    parsed = validate(EVENTS[kind], event)
    if isinstance(parsed, SessionUpdate | FlatSessionUpdate):
        settings = Settings(model="m", turns=TurnOptions()).updated(parsed)
        settings.shown("sess_0")
        assert settings.coding


def _form(model: type[TranslationRequest]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        kind, _, body = data.partition(b"\n")
        _LOOP.run_until_complete(_read_form(model, kind, body))

    return read


async def _read_form(model: type[TranslationRequest], kind: bytes, body: bytes) -> None:
    pieces: list[Message] = [
        {"type": "http.request", "body": body[:1000], "more_body": True},
        {"type": "http.request", "body": body[1000:], "more_body": False},
    ]

    async def receive() -> Message:
        return pieces.pop(0)

    scope: dict[str, Any] = {"type": "http", "app": None, "headers": [(b"content-type", kind)]}
    parsed, upload = await read_form(
        Request(scope, receive), model, max_bytes=1 << 20, budget=_BUDGET
    )
    with contextlib.closing(upload):
        parsed.options()
        assert parsed.granularities


READERS: Final[tuple[Callable[[bytes], None], ...]] = (
    _chat,
    _completion,
    _tokenize,
    _detokenize,
    _event,
    _form(TranscriptionRequest),
    _form(TranslationRequest),
)
"""Readers selected by the first byte: "0" the first, "1" the second, and so on, wrapping around."""


_ODD_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 0.5, -0.0, 1e-310, 1e308),
    *(float("inf"), "", "0", "\x00", "\ud800", "x" * 3000, [], {}, [[]], [{}], {"": 0}),
)


@cache
def _names() -> tuple[str, ...]:
    """Return field names and literals of every schema, quoted as in JSON."""
    models: list[type] = [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]
    models += [TranscriptionRequest, *EVENTS.values()]
    _, components = msgspec.json.schema_components(models)
    names = {name for schema in components.values() for name in schema.get("properties", ())}
    names |= {str(value) for schema in components.values() for value in _literals(schema)}
    return tuple(f'"{name}"' for name in sorted(names))


def _literals(schema: Any) -> list[Any]:
    match schema:
        case dict():
            return [*schema.get("enum", []), *(v for s in schema.values() for v in _literals(s))]
        case list():
            return [value for item in schema for value in _literals(item)]
        case _:
            return []


TOKENS: Final = (
    *_names(),
    *("null", "true", "false", "NaN", "-1", "1e400", "1e-310", "\\ud800", "\\u0000", "{}", "[]"),
    *("multipart/form-data; boundary=x", "--x\r\n", "--x--", "Content-Disposition: form-data; "),
    *('name="file"', 'filename="a"', "\r\n\r\n", "Content-Type: "),
)
