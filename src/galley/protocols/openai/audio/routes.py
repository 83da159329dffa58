"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: transcripts of recordings."""

import asyncio
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from galley.errors import GalleyError, SettingsError
from galley.gateway.call import Call
from galley.gateway.recordings import StoredRecording, digest_of, look_up
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.http.admit import find
from galley.protocols.http.budget import ByteBudget
from galley.protocols.http.caller import caller_of
from galley.protocols.http.forms import Upload, read_form
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, begun, while_connected
from galley.protocols.openai.audio.answers import ENDPOINTS, Transcript
from galley.protocols.openai.audio.schemas import TranscriptionRequest, TranslationRequest

_MEDIA_TYPES: Final = {
    "json": "application/json",
    "verbose_json": "application/json",
    "diarized_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}

_FIELD_BYTES: Final = 4 << 20
"""Most bytes of a field: ten seconds of a known speaker, uncompressed, as a data URL."""

_ANSWER: Final[dict[str, Any]] = {
    "application/json": {"type": "object"},
    "text/plain": {"type": "string"},
    "text/vtt": {"type": "string"},
    "text/event-stream": {"description": "Events, each with JSON as its data."},
}


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""
    settings = models.settings
    budget = ByteBudget(
        settings.max_upload_bytes or 4 * settings.max_audio_bytes,
        of="The recordings of all requests",
        setting="--max-upload-bytes",
        code="too_many_uploads",
    )

    async def transcriptions(request: Request) -> Response:
        """Transcribe a recording in its language."""
        return await _answer(models, budget, request, TranscriptionRequest, "transcribe")

    async def translations(request: Request) -> Response:
        """Translate a recording's speech to English text."""
        return await _answer(models, budget, request, TranslationRequest, "translate")

    about = "The transcript in `response_format`; with `stream`, as events"
    return [
        Operation(
            "POST", path, handler, tag="audio", form=form, answers={200: _ANSWER}, about=about
        )
        for path, handler, form in (
            (ENDPOINTS["transcribe"], transcriptions, TranscriptionRequest),
            (ENDPOINTS["translate"], translations, TranslationRequest),
        )
    ]


async def _answer(
    models: Registry,
    budget: ByteBudget,
    request: Request,
    model: type[TranslationRequest],
    task: Literal["transcribe", "translate"],
) -> Response:
    caller = caller_of(request)
    models.expect(task, caller)
    await asyncio.to_thread(require_extra)
    limit = models.settings.max_audio_bytes
    with ExitStack() as held:
        form, upload = await read_form(
            request, model, max_bytes=limit, budget=budget, field_bytes=_FIELD_BYTES
        )
        held.callback(upload.close)
        served = await find(models, request, form, task, caller)
        call = Call(served, ENDPOINTS[task], caller)
        held.callback(call.close)
        begin = _found_or_begun(call, form, upload)
        transcript = await while_connected(request.receive, begin)
        held.callback(transcript.close)
        if form.stream:
            events = await begun(request.receive, transcript.events())
            return EventStream(events, held.pop_all().close)
        page = await while_connected(request.receive, transcript.page(form))
    return Response(page, media_type=_MEDIA_TYPES[form.response_format])


async def _found_or_begun(call: Call, form: TranslationRequest, upload: Upload) -> Transcript:
    """Return the stored transcript of the recording, or begin to transcribe it."""
    options = msgspec.to_builtins(
        (
            form.options(),
            form.raw,
            (form.track, form.channel, form.multichannel),
            form.kinds(call.served.settings.redact),
            form.diarization(),
        )
    )
    content = b""
    if call.backend.responses is not None and call.cache_mode != "off":
        content = await asyncio.to_thread(digest_of, upload.file)
    place = await look_up(call, content, options)
    if place.found is not None:
        with suppress(msgspec.MsgspecError):
            return Transcript.again(call, place.found)
    return await _begun(call, form, upload, place)


async def _begun(
    call: Call, form: TranslationRequest, upload: Upload, place: StoredRecording
) -> Transcript:
    """Run :meth:`Transcript.begin` in a thread, and wait for it if cancelled: it uses the file."""
    begin = asyncio.to_thread(Transcript.begin, call, form, upload.file, upload.name, place)
    work = asyncio.ensure_future(begin)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(GalleyError):
            (await work).close()
        raise


def require_extra() -> None:
    """Raise ApiError 501 if a package of the extra ``speech`` is missing. Slow the first time."""
    from galley import speech

    try:
        speech.require_extra()
    except SettingsError as error:
        raise ApiError(
            501, str(error), type="internal_error", code="speech_not_installed"
        ) from error
