"""Reading a multipart form with one file: bounded, strict, and with errors that name the field."""

from collections.abc import Sequence, Set
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from galley.api.errors import ApiError
from galley.api.validate import validate
from galley.errors import RequestError
from galley.server.errors import TOO_LARGE, ClientGone

_MAX_FIELDS: Final = 64
_MAX_FIELD_BYTES: Final = 64 * 1024

Model = TypeVar("Model", bound=msgspec.Struct)


class Upload(NamedTuple):
    """A file that came with a form; on disk if it is large, gone with its request."""

    name: str
    file: BinaryIO


async def read_form(
    request: Request, model: type[Model], *, max_bytes: int
) -> tuple[Model, Upload]:
    """The form's fields as ``model``, and its field ``file``.

    A field that ``model`` has as a sequence may be sent as ``name[]``, and several times.

    Raises:
        ApiError: 415 for a body that is no multipart form, 413 for one over ``max_bytes``;
            reading stops there.
        RequestError: not a form, or a field that ``model`` refuses; ``param`` names it.
        ClientGone: the client hung up before the body was complete.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ApiError(
            415,
            f"Content-Type must be multipart/form-data, got {kind[:80]!r}",
            code="unsupported_media_type",
        )
    bounded = Request(request.scope, _Bounded(request, max_bytes).receive)
    try:
        form = await bounded.form(
            max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
        )
    except ClientDisconnect:
        raise ClientGone("client hung up while sending its request") from None
    except HTTPException as error:
        raise RequestError(f"The body is no form that can be read: {error.detail}") from None
    lists = {f.name for f in msgspec.structs.fields(model) if isinstance(f.default, tuple)}
    return validate(model, _values(form, lists), text=True), _upload(form)


class _Bounded:
    """Receives a body up to a limit."""

    def __init__(self, request: Request, limit: int) -> None:
        self._receive = request.receive
        self._limit = self._left = limit
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise self._too_large()
        return message

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The body is larger than {self._limit} bytes (--max-audio-bytes)",
            param="file",
            code=TOO_LARGE,
            headers={"Connection": "close"},  # the rest of the body may be endless
        )


def _values(form: FormData, lists: Set[str]) -> dict[str, Any]:
    """Field name -> its text; a list of texts for those in ``lists``."""
    values: dict[str, Any] = {}
    for key in form:
        name = key.removesuffix("[]")
        given: Sequence[UploadFile | str] = form.getlist(key)
        if name == "file":
            continue
        if any(not isinstance(value, str) for value in given):
            raise RequestError(f"{name[:64]}: expected text, got a file", param=name[:64])
        repeated = key.endswith("[]") or len(given) > 1
        values[name] = list(given) if repeated or name in lists else given[0]
    return values


def _upload(form: FormData) -> Upload:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("Missing field 'file'", param="file")
    return Upload((file.filename or "the recording")[:100], file.file)
