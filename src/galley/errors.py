"""Every error Galley raises on purpose, in one tree.

``GalleyError``
    ``RequestError``        the caller's request is wrong (HTTP 400); ``param`` names the field
        ``UnknownModel``        no model has the name (HTTP 404)
        ``Conflict``            the request conflicts with work in progress (HTTP 409)
        ``NotStored``           only a stored answer is wanted, and there is none (HTTP 504)
        ``ContextExceeded``     prompt or ``max_tokens`` do not fit the context
        ``AudioError``          the recording cannot be read
            ``AudioTooLong``        it is longer than the limit (HTTP 413)
    ``ModelError``          the model cannot be used
        ``ModelNotFound``       no such folder, or no such hub id, or the hub cannot be reached
        ``UnsupportedModel``    a family or feature that Galley does not implement
        ``CheckpointError``     a file of the checkpoint is missing, damaged or contradicts another
    ``SettingsError``       a flag, a GALLEY_* variable or a line of galley.yaml is wrong
    ``Unavailable``         temporarily unavailable; ``retry_after`` in seconds
        ``QueueFull``           admission refused (HTTP 429)
        ``RateLimited``         the tenant has used up its limits (HTTP 429)
        ``Draining``            the server is shutting down (HTTP 503)
        ``MemoryPressure``      the memory is nearly used up (HTTP 503)
        ``EngineNotReady``      the engine is starting or restarting (HTTP 503)
    ``DeadlineExceeded``    the request's deadline has passed (HTTP 504)
    ``SlowReader``          the answer was not read fast enough, and was cut off
    ``EngineError``         a fault in Galley (HTTP 500)
        ``EngineFailed``        the engine could not start, or died repeatedly
            ``DamagedWeights``      packed weights on disk have changed
            ``NotEnoughMemory``     the model does not fit the available memory
"""

import reprlib
from typing import Final, Literal

DISTRIBUTION: Final = "galley-inference"
"""Galley's name on the package index, where ``galley`` is another project's."""


def pip_install(extra: str) -> str:
    """Return the command that installs Galley with an extra, for use in an error message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_LONGEST_FIELD: Final = 200
_SHOWN: Final = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120


def shown(value: object) -> str:
    """Return the ``repr`` of an untrusted value, cut where it is too long or too deep for a message."""
    return _SHOWN.repr(value)


class GalleyError(Exception):
    """Base of the tree; the message states what happened, which value, and what to do."""


class RequestError(GalleyError, ValueError):
    """The request cannot be honored as written. ``param`` names the offending field, if there is one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModel(RequestError):
    """No served model has the name given in the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class Conflict(RequestError):
    """The request conflicts with an operation in progress."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="conflict")


def same_id(request_id: str) -> Conflict:
    """Return the error for a request whose id is that of an unfinished one."""
    return Conflict(f"a request with the id {shown(request_id)} is unfinished: ids must be unique")


class NotStored(RequestError):
    """The request wants a stored answer or none, and none is stored."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="cache-control", code="not_stored")


class ContextExceeded(RequestError):
    """Prompt plus ``max_tokens`` exceed what the model or its KV cache can ever hold."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class AudioError(RequestError):
    """The recording cannot be read; the message states the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="file")


class AudioTooLong(AudioError):
    """The recording is longer than the limit."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = "audio_too_long"


class ModelError(GalleyError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """The name is neither a folder nor a reachable hub id."""


class UnsupportedModel(ModelError):
    """The checkpoint needs a family or a feature that Galley does not implement."""


class CheckpointError(ModelError):
    """A checkpoint file is missing, damaged, or contradicts another. The message names file and field."""

    def __init__(self, message: str, *, file: str, field: str | None = None) -> None:
        if field is not None and not (field.isprintable() and len(field) <= _LONGEST_FIELD):
            field = shown(field)
        where = f"{file}: {field}" if field else file
        # A name from a file may contain any characters; the message must be one line that UTF-8 can encode.
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in f"{where}: {message}")
        super().__init__(text)
        self.file = file
        self.field = field


class SettingsError(GalleyError, ValueError):
    """A setting is unknown, malformed, or contradicts another. The message names it and its source."""


class Unavailable(GalleyError):
    """The request is valid but cannot be accepted now. ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Unavailable):
    """The number of running and waiting requests has reached its bound."""


class RateLimited(Unavailable):
    """The tenant has used up its limits for now. ``limit`` is requests, tokens or concurrency."""

    def __init__(
        self,
        message: str,
        *,
        limit: Literal["requests", "tokens", "concurrency"],
        retry_after: float,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.limit = limit


class Draining(Unavailable):
    """The server finishes the requests it has and accepts no new ones."""


class MemoryPressure(Unavailable):
    """The container's or the machine's memory is nearly used up; running requests continue."""


class EngineNotReady(Unavailable):
    """The engine is still starting, or is being restarted and its queue is full."""


class DeadlineExceeded(GalleyError):
    """The request's deadline passed before its answer was complete."""


class SlowReader(GalleyError):
    """The client reads its answer more slowly than the server can wait for."""


class EngineError(GalleyError):
    """Something on Galley's side failed."""


class EngineFailed(EngineError):
    """The engine process could not start, or kept dying without making progress."""


class NotEnoughMemory(EngineFailed):
    """The model does not fit the available memory; the message states what would make it fit."""


class RankKilled(EngineFailed):
    """A process that computed a part of the model was killed from outside."""


class DamagedWeights(EngineFailed):
    """Packed weights on disk have changed. Their file has been deleted; loading again repacks them."""
