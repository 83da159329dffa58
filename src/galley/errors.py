"""Every error Galley raises on purpose, in one tree.

``GalleyError``
    ``RequestError``        the caller's request is wrong (HTTP 400); ``param`` names the field
        ``UnknownModel``        no model has the name (HTTP 404)
        ``Conflict``            what is asked for is being done already (HTTP 409)
        ``ContextExceeded``     prompt or ``max_tokens`` do not fit the context
        ``AudioError``          the recording cannot be read
            ``AudioTooLong``        it is longer than the limit (HTTP 413)
    ``ModelError``          the model cannot be used
        ``ModelNotFound``       no such folder, or no such hub id, or the hub cannot be reached
        ``UnsupportedModel``    a family or feature that Galley does not implement
        ``CheckpointError``     a file of the checkpoint is missing, damaged or contradicts another
    ``SettingsError``       a flag, a GALLEY_* variable or a line of galley.yaml is wrong
    ``Unavailable``         not now, maybe later; ``retry_after`` in seconds
        ``QueueFull``           admission refused (HTTP 429)
        ``RateLimited``         the tenant has used what its limits allow (HTTP 429)
        ``Draining``            the server is shutting down (HTTP 503)
        ``MemoryPressure``      the memory is nearly used up (HTTP 503)
        ``EngineNotReady``      the engine is starting or restarting (HTTP 503)
    ``DeadlineExceeded``    the request's time is over (HTTP 504)
    ``SlowReader``          the answer was not read fast enough, and was cut
    ``EngineError``         our own fault (HTTP 500)
        ``EngineFailed``        the engine could not start, or died again and again
            ``DamagedWeights``      packed weights on disk have changed
            ``NotEnoughMemory``     the model does not fit what is available
"""

import reprlib
from typing import Final, Literal

DISTRIBUTION: Final = "galley-inference"
"""Galley's name on the package index, where ``galley`` is another project's."""


def pip_install(extra: str) -> str:
    """The command that installs Galley with an extra, to say in an error."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_LONGEST_FIELD: Final = 200
_SHOWN: Final = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120


def shown(value: object) -> str:
    """``repr`` of a value from outside, cut where it would be too long or too deep for a message."""
    return _SHOWN.repr(value)


class GalleyError(Exception):
    """Base of the tree; the message says what happened, which value, and what to do."""


class RequestError(GalleyError, ValueError):
    """The request cannot be honoured as written. ``param`` names the offending field, if one does."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModel(RequestError):
    """No served model has the name that a request gives."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class Conflict(RequestError):
    """What a request asks for does not go with something that is being done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="conflict")


class ContextExceeded(RequestError):
    """Prompt plus ``max_tokens`` exceed what the model or its KV cache can ever hold."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class AudioError(RequestError):
    """The recording cannot be read: what is wrong with it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="file")


class AudioTooLong(AudioError):
    """The recording is longer than the limit."""


class ModelError(GalleyError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """Neither a folder nor a reachable hub id."""


class UnsupportedModel(ModelError):
    """The checkpoint asks for a family or a feature that Galley does not implement."""


class CheckpointError(ModelError):
    """A checkpoint file is missing, damaged, or contradicts another. Names file and field."""

    def __init__(self, message: str, *, file: str, field: str | None = None) -> None:
        if field is not None and not (field.isprintable() and len(field) <= _LONGEST_FIELD):
            field = shown(field)
        where = f"{file}: {field}" if field else file
        # A name from a file may hold anything; the message is one line that UTF-8 can encode.
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in f"{where}: {message}")
        super().__init__(text)
        self.file = file
        self.field = field


class SettingsError(GalleyError, ValueError):
    """A setting is unknown, malformed, or contradicts another. Names the setting and its source."""


class Unavailable(GalleyError):
    """The request is fine but cannot be taken now. ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Unavailable):
    """Running and waiting requests have reached their bound."""


class RateLimited(Unavailable):
    """The tenant has used what its limits allow for now. ``limit``: of requests, tokens or concurrency."""

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
    """The server finishes what it has and takes nothing new."""


class MemoryPressure(Unavailable):
    """The container's or the machine's memory is nearly used up; what runs goes on."""


class EngineNotReady(Unavailable):
    """The engine is still starting, or is being restarted and its queue is full."""


class DeadlineExceeded(GalleyError):
    """The request's deadline passed before its answer was complete."""


class SlowReader(GalleyError):
    """The client reads its answer more slowly than the server can wait for."""


class EngineError(GalleyError):
    """Something on Galley's side broke."""


class EngineFailed(EngineError):
    """The engine process could not start, or kept dying without making progress."""


class NotEnoughMemory(EngineFailed):
    """The model does not fit the memory that is available; the message says what would make it fit."""


class DamagedWeights(EngineFailed):
    """Packed weights on disk have changed. Their file is gone; to load again packs them anew."""
