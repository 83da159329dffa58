"""Errors as HTTP answers, with the envelope of ``galley.protocols.common.errors``."""

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
from galley.protocols.common.errors import ApiError, envelope, to_api_error
from galley.protocols.common.messages import Strict
from galley.protocols.ollama import answers as ollama_answer

CLIENT_GONE: Final = 499
"""Status of a request whose client hung up, in logs and metrics; it is never sent."""

BEGINNINGS: Final = ("http.response.start", "websocket.http.response.start", "websocket.accept")
"""ASGI messages that have an answer's headers."""

TOO_LARGE: Final = "request_too_large"
"""The code of a body over the cap, of which some may be on its way still."""

_ENVELOPES: Final[Mapping[str, Callable[[Exception], Mapping[str, Any]]]] = {
    anthropic_answer.ENDPOINT: anthropic_answer.envelope,
    ollama_answer.PREFIX: ollama_answer.envelope,
}
"""Beginning of paths -> errors of that protocol; those of all others are OpenAI's."""

_FIELD: Final = re.compile(r"\w+", re.ASCII)

_SHOWN: Final = 100
"""Characters of a client's text that an error repeats."""

_DISCARD_BYTES: Final = 64 << 20
_DISCARD_SECONDS: Final = 2.0
_DISCARD_IDLE_SECONDS: Final = 0.25


class ClientGone(ApiError):
    """The client hung up before its answer was complete; nobody reads the response."""

    def __init__(self, message: str) -> None:
        super().__init__(CLIENT_GONE, message, code="client_gone")


class ErrorResponse(Response):
    """An error in the envelope of the protocol that the path belongs to; the access log is told of it."""

    media_type = "application/json"

    def __init__(self, error: ApiError) -> None:
        super().__init__(b"", error.status, error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        note_error(scope, self._error)
        self.body = msgspec.json.encode(envelope_of(scope["path"])(self._error))
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def envelope_of(path: str) -> Callable[[Exception], Mapping[str, Any]]:
    """What writes errors in the form of the protocol that the path belongs to."""
    for prefix, other in _ENVELOPES.items():
        if path.startswith(prefix):
            return other
    return envelope


def error_response(error: Exception) -> Response:
    """The full HTTP response for ``error``."""
    return ErrorResponse(to_api_error(error))


def note_error(scope: Scope, error: ApiError) -> None:
    """Tell the access log why: the error's code and field, whose name must be one of ours.

    The message, which may quote the request, only where prompts are logged, too.
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
    """Names of all fields of requests."""
    names, kinds = {"file"}, [Strict]
    for kind in kinds:
        names.update(kind.__struct_fields__)
        kinds += kind.__subclasses__()
    return frozenset(names)


async def answer_error(request: Request, error: Exception) -> Response:
    """The answer to a request whose handler, or whose way to one, raised an exception that is expected.

    The others are bugs; they pass through to :class:`galley.server.access.AccessLog`.
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
            f"{path} does not take {method}",
            code="method_not_allowed",
            headers=error.headers,
        )
    return ApiError(error.status_code, str(error.detail), headers=error.headers)


async def _discard_body(request: Request) -> None:
    """Read what the client still sends, within limits.

    Closing on unread bytes resets the connection, and the client may never see the answer (RFC 9112,
    section 9.6).
    """
    if "expect" in request.headers:
        return  # the client waits for leave to send, and takes the answer as a no
    left = _DISCARD_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await asyncio.wait_for(request.receive(), _DISCARD_IDLE_SECONDS)
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
