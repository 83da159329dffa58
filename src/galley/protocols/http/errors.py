"""Errors as HTTP responses, with the envelope of ``galley.protocols.common.errors``."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler, Receive, Scope, Send

from galley.errors import GalleyError
from galley.protocols.anthropic import answers as anthropic_answer
from galley.protocols.anthropic.models import VERSION
from galley.protocols.common.errors import ApiError, envelope, to_api_error
from galley.protocols.common.messages import Strict
from galley.protocols.kserve import messages as kserve
from galley.protocols.oip import messages as oip_answer
from galley.protocols.ollama import answers as ollama_answer

CLIENT_GONE: Final = 499
"""Status in logs and metrics of a request whose client disconnected; it is never sent."""

RESPONSE_STARTS: Final = (
    "http.response.start",
    "websocket.http.response.start",
    "websocket.accept",
)
"""ASGI messages that carry a response's headers."""

TOO_LARGE: Final = "request_too_large"
"""Error code of a body over the limit, which may still be arriving."""

_ENVELOPES: Final[Mapping[str, Callable[[Exception], Mapping[str, Any]]]] = {
    anthropic_answer.ENDPOINT: anthropic_answer.envelope,
    ollama_answer.PREFIX: ollama_answer.envelope,
    "/v2/rerank": envelope,
    "/v2": oip_answer.envelope,
}
"""Path prefix -> error envelope of that protocol, the first that fits; all other paths use OpenAI's,
except in answers to Anthropic's clients, which list models at OpenAI's path."""

_ANTHROPIC: Final = VERSION.encode()

_LENGTH: Final = b"content-length"

_FIELD: Final = re.compile(r"\w+", re.ASCII)

_SHOWN: Final = 100
"""Maximum length of a client's text that an error quotes."""

_DISCARD_BYTES: Final = 64 << 20
_DISCARD_SECONDS: Final = 2.0
_DISCARD_IDLE_SECONDS: Final = 0.25


class ClientGone(ApiError):
    """The client hung up before its answer was complete; nobody reads the response."""

    def __init__(self, message: str) -> None:
        super().__init__(CLIENT_GONE, message, code="client_gone")


class ErrorResponse(Response):
    """An error in the envelope of the path's protocol; it is also noted in the access log."""

    media_type = "application/json"

    def __init__(self, error: ApiError) -> None:
        super().__init__(b"", error.status, error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the error for the access log and send the response."""
        note_error(scope, self._error)
        self.body = msgspec.json.encode(envelope_of(scope)(self._error))
        self.raw_headers = [header for header in self.raw_headers if header[0] != _LENGTH]
        self.raw_headers.append((_LENGTH, b"%d" % len(self.body)))
        await super().__call__(scope, receive, send)


def envelope_of(scope: Scope) -> Callable[[Exception], Mapping[str, Any]]:
    """Return the function that builds error bodies in the form that a request's client reads."""
    if kserve.PATHS.fullmatch(scope["path"]):
        return oip_answer.envelope
    for prefix, other in _ENVELOPES.items():
        if scope["path"].startswith(prefix):
            return other
    if any(name == _ANTHROPIC for name, _ in scope["headers"]):
        return anthropic_answer.envelope
    return envelope


def error_response(error: Exception) -> Response:
    """Return the full HTTP response for ``error``."""
    return ErrorResponse(to_api_error(error))


def note_error(scope: Scope, error: ApiError) -> None:
    """Note an error for the access log: its code, and its field if that is a known field name.

    The message, which may quote the request, is added only where prompts are logged.
    """
    state = scope.get("state", {})
    record: dict[str, Any] | None = state.get("record")
    if record is None:
        return
    record["error"] = error.code or error.type
    field = _FIELD.match(error.param or "")
    if field is not None and field[0] in _known_fields():
        record["param"] = field[0]
    if state.get("log_prompts"):
        record["reason"] = str(error)


@cache
def _known_fields() -> frozenset[str]:
    """Return the names of all request fields."""
    names, kinds = {"file"}, [Strict]
    for kind in kinds:
        names.update(kind.__struct_fields__)
        kinds += kind.__subclasses__()
    return frozenset(names)


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the response for an expected exception, raised by a handler or before one was reached.

    Other exceptions are bugs; they propagate to :class:`galley.server.access.AccessLog`.
    """
    if isinstance(error, HTTPException):
        error = _of_starlette(request, error)
    if isinstance(error, ApiError) and "Connection" in error.headers:
        await _discard_body(request)
    return error_response(error)


HANDLERS: Final[dict[type[Exception], ExceptionHandler]] = {
    GalleyError: answer_error,
    HTTPException: answer_error,
}


def _of_starlette(request: Request, error: HTTPException) -> ApiError:
    path, method = request.url.path[:_SHOWN], request.method[:_SHOWN]
    if error.status_code == 404:
        return ApiError(404, f"Unknown URL: {method} {path}", code="unknown_url")
    if error.status_code == 405:
        return ApiError(
            405,
            f"{path} does not support {method}",
            code="method_not_allowed",
            headers=error.headers,
        )
    return ApiError(error.status_code, str(error.detail), headers=error.headers)


async def _discard_body(request: Request) -> None:
    """Read and discard what the client still sends, within limits.

    Closing a connection with unread bytes resets it, and the client may never see the response
    (RFC 9112, section 9.6).
    """
    if "expect" in request.headers:
        return  # the client waits for 100 Continue, and the response denies it
    left = _DISCARD_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await asyncio.wait_for(request.receive(), _DISCARD_IDLE_SECONDS)
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
