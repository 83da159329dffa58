"""Exceptions as statuses and OpenAI's envelope: ``{"error": {message, type, param, code}}``."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypedDict

from galley.errors import (
    AudioTooLong,
    Conflict,
    DeadlineExceeded,
    Draining,
    GalleyError,
    MemoryPressure,
    NotStored,
    QueueFull,
    RateLimited,
    RequestError,
    SlowReader,
    Unavailable,
    UnknownModel,
)

MAX_MESSAGE: Final = 480
"""Maximum length of an error message, which can quote long values of the request."""
_MAX_BEGINNING: Final = 320


class ErrorDetail(TypedDict):
    """The error, and the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Body of every answer with a status other than 2xx."""

    error: ErrorDetail


class ApiError(GalleyError):
    """An error as it is reported to the client.

    Attributes:
        status: status of the HTTP answer, or of the line in a results file.
        headers: headers of the HTTP answer.
    """

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


_STATUSES: Final[dict[type[RequestError], int]] = {
    UnknownModel: 404,
    Conflict: 409,
    AudioTooLong: 413,
    NotStored: 504,  # RFC 9111, section 5.2.1.7
}
"""Statuses of errors of the request; others are 400."""

_UNAVAILABLE: Final = {Draining: "draining", MemoryPressure: "memory_pressure"}


def to_api_error(error: Exception) -> ApiError:
    """Return ``error`` as reported to the client; details of unforeseen errors stay in the log."""
    match error:
        case ApiError():
            return error
        case RequestError():
            status = _STATUSES.get(type(error), 400)
            return ApiError(status, str(error), param=error.param, code=error.code)
        case QueueFull():
            return ApiError(
                429,
                str(error),
                type="rate_limit_error",
                code="queue_full",
                headers=_retry_after(error),
            )
        case RateLimited():
            return ApiError(
                429,
                str(error),
                # OpenAI's error types are named after its two limits.
                type="tokens" if error.limit == "tokens" else "requests",
                code="rate_limit_exceeded",
                headers=_retry_after(error),
            )
        case Unavailable():
            code = _UNAVAILABLE.get(type(error), "engine_not_ready")
            return ApiError(
                503,
                str(error),
                type="service_unavailable",
                code=code,
                headers=_retry_after(error),
            )
        case DeadlineExceeded():
            return ApiError(504, str(error), type="timeout_error", code="deadline_exceeded")
        case SlowReader():
            return ApiError(408, str(error), type="timeout_error", code="slow_reader")
        case GalleyError():
            return ApiError(500, str(error), type="internal_error", code="engine_error")
        case _:
            return ApiError(
                500,
                "Internal error; see the server's log for this answer's X-Request-Id",
                type="internal_error",
                code="internal_error",
            )


def _shortened(message: str) -> str:
    """Shorten a message, keeping its beginning (the error) and its end (the remedy)."""
    if len(message) <= MAX_MESSAGE:
        return message
    beginning = f"{message[:_MAX_BEGINNING]} [...] "
    return beginning + message[len(beginning) - MAX_MESSAGE :]


def naming_message(error: Exception) -> str:
    """Return an error's message with its field named, for protocols without a field for that."""
    api_error = to_api_error(error)
    message = str(api_error)
    if api_error.param is not None and api_error.param not in message:
        message = f"{api_error.param}: {message}"
    return _shortened(message)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Re-raise errors of the context with a protocol's own field names.

    Args:
        names: the core's field name -> the protocol's.
    """
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        if param not in names:
            raise
        message = str(error).replace(param, names[param])
        raise RequestError(message, param=names[param], code=error.code) from None


def envelope(error: Exception) -> dict[str, dict[str, str | None]]:
    """Return the error body in OpenAI's format."""
    api_error = to_api_error(error)
    return {
        "error": {
            "message": _shortened(str(api_error)),
            "type": api_error.type,
            "param": api_error.param,
            "code": api_error.code,
        }
    }


def _retry_after(error: Unavailable) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
