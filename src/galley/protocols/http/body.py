"""Reading of JSON request bodies up to a limit; each protocol's ``schemas`` define the fields."""

import asyncio
import re
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request

from galley.protocols.common.errors import ApiError
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.http.budget import ByteBudget
from galley.protocols.http.errors import TOO_LARGE, ClientGone

LARGE: Final = 256 * 1024
"""Size in bytes above which a body is parsed in a thread."""

_LARGE_BODY: Final = 1 << 20
"""Declared length in bytes from which a body is received in a buffer of that length."""

_JSON: Final = "application/json"
_OCTETS: Final = "application/octet-stream"
"""A content type that a page of another origin cannot send without a preflight request, as JSON's."""

_UNDECLARED: Final = frozenset(("", "application/x-www-form-urlencoded"))
"""Content types sent by clients that do not set one."""

_BROWSER_HEADERS: Final = ("origin", "sec-fetch-site")
"""Browsers send one of these with every POST, and pages cannot remove it (Fetch standard)."""

_CHARSET = re.compile(r"""charset=["']?([\w-]*)""", re.IGNORECASE)

_CHARSETS: Final = ("utf-8", "utf8", "us-ascii")
"""UTF-8, a common spelling of it, and a subset of it."""

Model = TypeVar("Model")
T = TypeVar("T")


async def read(request: Request, model: type[Model], *, max_bytes: int) -> Model:
    """Read the request's body and parse it as ``model``.

    Raises:
        ApiError: 415 for a body declared as anything other than JSON in UTF-8, 413 for one over
            ``max_bytes``, 503 while too many bodies are being received; reading stops there.
        RequestError: the body is not JSON or not an object, or ``model`` rejects a field, which
            ``param`` names.
        ClientGone: the client hung up before the body was complete.
    """
    data = await read_bytes(request, max_bytes=max_bytes)
    return await in_thread_if_large(len(data), lambda: _parse(model, data))


async def in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Return the result of ``work`` on ``size`` bytes, done in a thread if that takes long."""
    return await asyncio.to_thread(work) if size > LARGE else work()


async def read_bytes(request: Request, *, max_bytes: int) -> bytes:
    """Read the request's body, which is declared as JSON.

    Raises:
        ApiError, ClientGone: as for :func:`read`.
    """
    _check_content_type(request.headers, binary=False)
    return bytes(await _received(request, max_bytes))


async def read_binary(request: Request, *, max_bytes: int) -> bytes | memoryview:
    """Read a body that is declared as JSON or as ``application/octet-stream``; it is not copied.

    Raises:
        ApiError, ClientGone: as for :func:`read`.
    """
    _check_content_type(request.headers, binary=True)
    return await _received(request, max_bytes)


def _parse(model: type[Model], data: bytes) -> Model:
    return validate(model, parse_json(data))


def _check_content_type(headers: Headers, *, binary: bool) -> None:
    """Raise ApiError unless the body may be read as JSON, or as ``binary`` data.

    Any web page can make a browser send content types other than JSON here without a preflight
    request, so browsers have to declare JSON. For ``curl -d``, which declares a form, the body
    itself decides.
    """
    header = headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    charset = _CHARSET.search(header)
    from_browser = any(name in headers for name in _BROWSER_HEADERS)
    kinds = (_JSON, _OCTETS) if binary else (_JSON,)
    declared = kind in kinds or (kind in _UNDECLARED and not from_browser)
    if not declared or (charset and charset[1].lower() not in _CHARSETS):
        raise ApiError(
            415,
            f"Content-Type must be {' or '.join(kinds)} (in UTF-8), got {header[:80]!r}",
            code="unsupported_media_type",
        )


async def _received(request: Request, max_bytes: int) -> bytes | memoryview:
    text = request.headers.get("content-length", "")
    declared = int(text[:20]) if text.isdecimal() else 0
    if declared > max_bytes:
        raise _too_large(max_bytes)
    budget: ByteBudget = request.app.state.body_budget
    small = bytearray()
    large: memoryview | None = None
    size = 0
    try:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("the client disconnected while sending its request")
            part, more = message.get("body", b""), message.get("more_body", False)
            arrived = message.get("filled", 0) + len(part)
            if size + arrived > max_bytes:
                raise _too_large(max_bytes)
            budget.take(arrived)
            if large is not None:
                large[size : size + len(part)] = part
            elif more or small:
                small += part
            size += arrived
            if not more:
                return bytes(small or part) if large is None else large[:size]
            if large is None and size < declared and declared >= _LARGE_BODY:
                large = request.app.state.large_bodies.take(declared)
                large[:size] = small
                if fill := message.get("fill"):
                    fill(large[size:])
    finally:
        budget.give_back(size)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {max_bytes} bytes (--max-body-bytes)",
        code=TOO_LARGE,
        headers={"Connection": "close"},  # the rest of the body may never end
    )
