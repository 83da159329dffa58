"""Reading of multipart forms with one file: bounded, strict, with errors that name the field."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO, Final, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from galley.errors import RequestError
from galley.protocols.common.errors import ApiError
from galley.protocols.common.validate import validate
from galley.protocols.http.budget import ByteBudget
from galley.protocols.http.errors import TOO_LARGE, ClientGone
from galley.protocols.http.query import values_of

log = logging.getLogger("galley.server")

_MAX_FIELDS: Final = 64
_FIELD_BYTES: Final = 64 * 1024
_HOW_TO_SEND: Final = (
    "send the recording as a file, with a filename (curl -F file=@call.wav, not -F file=<call.wav)"
)
_RETRY_SECONDS: Final = "30"
"""Seconds after which to retry on a server whose temporary folder is full."""

Model = TypeVar("Model", bound=msgspec.Struct)


class Upload(NamedTuple):
    """A file uploaded with a form: in memory, or in the temporary folder if it is large.

    The receiver must call ``close``, which removes the file and returns its bytes to the budget.
    """

    name: str
    file: BinaryIO
    close: Callable[[], None]


async def read_form(
    request: Request,
    model: type[Model],
    *,
    max_bytes: int,
    budget: ByteBudget,
    field_bytes: int = _FIELD_BYTES,
) -> tuple[Model, Upload]:
    """Read a form and return its fields as ``model``, and its field ``file``.

    A field that is a sequence in ``model`` may be sent as ``name[]``, and several times; fields of an
    object as ``name[field]``, or the object as JSON.

    Args:
        request: the request whose body is read.
        model: the type that the fields are parsed as.
        max_bytes: limit on the size of the body.
        budget: covers the bytes of all uploads that are not closed yet.
        field_bytes: limit on the size of each field but the file.

    Raises:
        ApiError: 415 for a body that is not a multipart form, 413 for one over ``max_bytes``, 503
            while the budget is used up or the temporary folder is unusable; reading stops there.
        RequestError: the body is not a valid form, or ``model`` rejects the field in ``param``.
        ClientGone: the client hung up before the body was complete.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ApiError(
            415,
            f"Content-Type must be multipart/form-data, got {kind[:80]!r}",
            code="unsupported_media_type",
        )
    with ExitStack() as held:
        body = _Bounded(request, max_bytes, budget)
        held.callback(body.give_back)
        form = await _parsed(Request(request.scope, body.receive), field_bytes)
        for _, value in form.multi_items():
            if isinstance(value, UploadFile):
                held.callback(value.file.close)
        given = FormData([(key, value) for key, value in form.multi_items() if key != "file"])
        if "file[]" in given:
            raise RequestError("send one recording, in the field file", param="file[]")
        parsed = validate(model, values_of(given, model), text=True)
        file = _file(form)
        name = (file.filename or "the recording")[:100]
        return parsed, Upload(name, file.file, held.pop_all().close)


async def _parsed(request: Request, field_bytes: int) -> FormData:
    """Parse the request's form. An error leaves no file open (see starlette's parser)."""
    try:
        return await request.form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=field_bytes)
    except ClientDisconnect:
        raise ClientGone("the client disconnected while sending its request") from None
    except HTTPException as error:
        if "maximum size" in str(error.detail):
            raise RequestError(
                f"A field of the form has more than {field_bytes} bytes of text; {_HOW_TO_SEND}",
                param="file",
            ) from None
        raise RequestError(f"The body is not a valid form: {error.detail}") from None
    except OSError as error:
        log.warning("cannot store an upload in the temporary folder: %s", error)
        why = os.strerror(error.errno) if error.errno else "unknown error"
        raise ApiError(
            503,
            f"The server cannot store uploads in its temporary folder: {why}",
            type="service_unavailable",
            code="no_space_for_uploads",
            headers={"Retry-After": _RETRY_SECONDS, "Connection": "close"},
        ) from None


class _Bounded:
    """Receives a body up to a limit, and counts it against a budget."""

    def __init__(self, request: Request, limit: int, budget: ByteBudget) -> None:
        self._receive = request.receive
        self._limit = limit
        self._budget = budget
        self._taken = 0
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        if self._taken + size > self._limit:
            raise self._too_large()
        self._budget.take(size)
        self._taken += size
        return message

    def give_back(self) -> None:
        """Return the body's bytes to the budget; the body is no longer needed."""
        self._budget.give_back(self._taken)
        self._taken = 0

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The body is larger than {self._limit} bytes (--max-audio-bytes)",
            param="file",
            code=TOO_LARGE,
            headers={"Connection": "close"},  # the rest of the body may never end
        )


def _file(form: FormData) -> UploadFile:
    given = form.getlist("file")
    if not given:
        raise RequestError("Missing field 'file'", param="file")
    if len(given) > 1:
        raise RequestError(f"send one recording, got {len(given)}", param="file")
    [file] = given
    if not isinstance(file, UploadFile):
        raise RequestError(f"file: expected a recording, got text; {_HOW_TO_SEND}", param="file")
    return file
