"""Reading a JSON request body: bounded, strict, and with errors that name the field.

Stricter than JSON parsers usually are, because what is ambiguous here is somebody's bug or attack:
duplicate keys, ``NaN``, nesting beyond :data:`MAX_DEPTH` and bodies over the cap are refused.
"""

import asyncio
import json
import re
from collections import Counter
from typing import Any, Final, NoReturn, TypeVar

import pydantic
from pydantic_core import ErrorDetails
from starlette.requests import Request

from galley.errors import RequestError
from galley.server.errors import TOO_LARGE, ClientGone, HTTPError
from galley.server.schemas import UNKNOWN_FIELD
from galley.text.tokenizer import replace_surrogates

MAX_DEPTH: Final = 64

LARGE: Final = 256 * 1024
"""Bytes from which on a body takes so long that it is read in a thread."""

_CHARSET = re.compile(r"""charset=["']?([\w-]*)""", re.IGNORECASE)
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Model = TypeVar("Model", bound=pydantic.BaseModel)


async def read(request: Request, model: type[Model], *, max_bytes: int) -> Model:
    """The request's body as ``model``.

    Raises:
        HTTPError: 415 for a body that is not declared as JSON, 413 for one over ``max_bytes``;
            reading stops there.
        RequestError: not JSON, not an object, or a field that ``model`` refuses; ``param`` names it.
        ClientGone: the client hung up before the body was complete.
    """
    _check_content_type(request.headers.get("content-type", ""))
    data = await _read_bytes(request, max_bytes)
    if len(data) > LARGE:
        return await asyncio.to_thread(_parse, model, data)
    return _parse(model, data)


def _parse(model: type[Model], data: bytes) -> Model:
    return validate(model, parse_json(data))


def parse_json(body: bytes, *, what: str = "The body") -> dict[str, Any]:
    """A JSON object, under the rules of this module; lone surrogates become U+FFFD.

    Args:
        body: in UTF-8.
        what: begins an error's message.

    Raises:
        RequestError: it is none, or breaks a rule.
    """
    try:
        value: Any = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{what} is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RequestError:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise RequestError(f"{what} holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object, like {...}")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value, what)
    if _ESCAPED_SURROGATE.search(body):
        # Neither pydantic nor a tokenizer takes half a character, which JSON's escapes let through.
        return {replace_surrogates(key): _whole(item) for key, item in value.items()}
    return value


def validate(model: type[Model], value: dict[str, Any]) -> Model:
    """``value`` as ``model``, or a :class:`RequestError` that names the first offending field."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _to_request_error(value, details) from None


def _check_content_type(header: str) -> None:
    kind = header.partition(";")[0].strip().lower()
    charset = _CHARSET.search(header)
    if kind != "application/json" or (charset and charset[1].lower() != "utf-8"):
        raise HTTPError(
            415,
            f"Content-Type must be application/json (in UTF-8), got {header[:80]!r}",
            code="unsupported_media_type",
        )


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("client hung up while sending its request")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(
        413,
        f"The body is larger than {max_bytes} bytes (--max-body-bytes)",
        code=TOO_LARGE,
        headers={"Connection": "close"},  # the rest of the body may be endless
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        name = replace_surrogates(twice[:64])
        raise RequestError(f"The key {name!r} appears twice in one object", param=name)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"{name} is not JSON")


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels")


def _whole(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {replace_surrogates(key): _whole(item) for key, item in value.items()}
        case _:
            return value


def _to_request_error(body: dict[str, Any], details: list[ErrorDetails]) -> RequestError:
    located = [_Located(body, detail) for detail in details]
    # A list of too many items was otherwise meant as the type that counted them.
    first = next((error for error in located if error.kind == "too_long"), located[0])
    if first.member is not None and first.kind != "too_long":
        siblings = [e for e in located if e.member is not None and e.union == first.union]
        # A value that fits no member of a union fails once or more for each. If only one member
        # agrees with its outer type, the value was meant to be that one.
        inner = [e for e in siblings if len(e.path) > len(e.union)]
        if len({e.member for e in inner}) == 1:
            first = inner[0]
        else:
            members = " or ".join(dict.fromkeys(str(e.member) for e in siblings))
            return RequestError(
                f"{_dotted(first.union)}: expected {members}", param=_dotted(first.union)
            )
    param = _dotted(first.path)
    if first.kind == UNKNOWN_FIELD:
        return RequestError(f"Unsupported field {_shown(param)}", param=param)
    if first.kind == "missing":
        return RequestError(f"Missing field {_shown(param)}", param=param)
    return RequestError(f"{param}: {_MESSAGES.get(first.kind, first.message)}", param=param)


class _Located:
    """One pydantic error, its path told apart from the union members pydantic puts into it.

    Attributes:
        path: steps that lead through the body to the offending value.
        member: the first union member on the way, as ``list[str]``, if there is a union.
        union: the path to that union.
    """

    def __init__(self, body: dict[str, Any], detail: ErrorDetails) -> None:
        self.kind = detail["type"]
        self.message = detail["msg"]
        if self.kind == "too_long":
            self.message = f"at most {detail['ctx']['max_length']} items are taken"
        self.path: list[str | int] = []
        self.member: str | int | None = None
        self.union: list[str | int] = []
        node: Any = body
        location = detail["loc"]
        for i, step in enumerate(location):
            if isinstance(node, list) and isinstance(step, int):
                node = node[step]
            elif isinstance(node, dict) and step in node:
                node = node.get(step)
            elif self.kind != "missing" or i < len(location) - 1:
                if self.member is None:
                    self.member, self.union = step, list(self.path)
                continue
            self.path.append(step)
        if self.kind == UNKNOWN_FIELD:
            self.path.append(detail["ctx"]["name"])


def _dotted(path: list[str | int]) -> str:
    """``messages[0].content``, as OpenAI writes it; cut to a sane length."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")[:200]


_MESSAGES: Final = {"model_type": "expected an object", "none_required": "only null is supported"}
"""Instead of pydantic's words, where those are about Python."""


def _shown(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:64] + "...")
