"""Every exception as OpenAI's error envelope: ``{"error": {message, type, param, code}}``."""

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from galley.errors import AudioTooLong, Draining, GalleyError, QueueFull, RequestError, Unavailable

log = logging.getLogger("galley.server")

CLIENT_GONE = 499
"""Status of a request whose client hung up, in logs and metrics; it is never sent."""

TOO_LARGE: Final = "request_too_large"
"""The code of a body over the cap, of which some may be on its way still."""

_DISCARD_BYTES: Final = 64 << 20
_DISCARD_SECONDS: Final = 2.0
_DISCARD_IDLE_SECONDS: Final = 0.25


class HTTPError(GalleyError):
    """A refusal that belongs to HTTP rather than to the request's meaning."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


class ClientGone(GalleyError):
    """The client hung up before its answer was complete; nobody reads the response."""


def to_http(error: Exception) -> HTTPError:
    """What the client is told about ``error``; anything unforeseen keeps its details to the log."""
    match error:
        case HTTPError():
            return error
        case ClientGone():
            return HTTPError(CLIENT_GONE, "client closed the request", code="client_gone")
        case AudioTooLong():
            return HTTPError(413, str(error), param=error.param, code="audio_too_long")
        case RequestError():
            return HTTPError(400, str(error), param=error.param, code=error.code)
        case QueueFull():
            return HTTPError(
                429,
                str(error),
                type="rate_limit_error",
                code="queue_full",
                headers=_retry_after(error),
            )
        case Unavailable():
            code = "draining" if isinstance(error, Draining) else "engine_not_ready"
            return HTTPError(
                503,
                str(error),
                type="service_unavailable",
                code=code,
                headers=_retry_after(error),
            )
        case GalleyError():
            return HTTPError(500, str(error), type="internal_error", code="engine_error")
        case HTTPException():
            return _from_starlette(error)
        case _:
            return HTTPError(
                500,
                "Internal error; the server's log has the details under this answer's X-Request-Id",
                type="internal_error",
                code="internal_error",
            )


def envelope(error: HTTPError) -> dict[str, dict[str, str | None]]:
    """The body that OpenAI's clients read."""
    return {
        "error": {
            "message": str(error),
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: Exception) -> Response:
    """The full HTTP response for ``error``."""
    http = to_http(error)
    return Response(
        msgspec.json.encode(envelope(http)),
        status_code=http.status,
        headers=http.headers,
        media_type="application/json",
    )


def install(app: FastAPI) -> None:
    """Make ``app`` answer expected exceptions, its router's own included, with the envelope.

    The others are bugs; they pass through to :class:`galley.server.access.AccessLog`.
    """

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            error = HTTPError(
                404, f"Unknown URL: {request.method} {request.url.path}", code="unknown_url"
            )
        elif isinstance(error, HTTPException) and error.status_code == 405:
            error = HTTPError(
                405,
                f"{request.url.path} does not take {request.method}",
                code="method_not_allowed",
                headers=error.headers,
            )
        if isinstance(error, HTTPError) and error.code == TOO_LARGE:
            await _discard_body(request)
        return error_response(error)

    for kind in (GalleyError, HTTPException):
        app.add_exception_handler(kind, handle)


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


def _retry_after(error: Unavailable) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}


def _from_starlette(error: HTTPException) -> HTTPError:
    return HTTPError(error.status_code, str(error.detail), headers=error.headers)
