"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: a recording, and what is said in it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from galley.api.audio import ENDPOINTS, Event, Transcript
from galley.api.errors import ApiError
from galley.api.schemas import TranscriptionRequest, TranslationRequest
from galley.errors import SettingsError
from galley.gateway.call import Call, opened
from galley.gateway.registry import Registry
from galley.server.access import caller_of
from galley.server.forms import read_form
from galley.server.openapi import Operation
from galley.server.sse import EventStream, while_connected

_MEDIA_TYPES: Final = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


_ANSWER: Final[dict[str, Any]] = {
    "application/json": {"type": "object"},
    "text/plain": {"type": "string"},
    "text/vtt": {"type": "string"},
    "text/event-stream": {"type": "string"},
}


def routes(models: Registry) -> list[Operation]:
    """The routes, answered by ``models``."""

    async def transcriptions(request: Request) -> Response:
        """What is said in a recording, in its language."""
        return await _answer(models, request, TranscriptionRequest, "transcribe")

    async def translations(request: Request) -> Response:
        """What is said in a recording, in English."""
        return await _answer(models, request, TranslationRequest, "translate")

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
    request: Request,
    model: type[TranslationRequest],
    task: Literal["transcribe", "translate"],
) -> Response:
    caller = caller_of(request)
    models.expect(task, caller)
    await asyncio.to_thread(require_extra)
    asked, upload = await read_form(request, model, max_bytes=models.settings.max_audio_bytes)
    served = models.find(asked.model, task, caller)
    # Made and closed here: a thread goes on when its client hangs up.
    with opened(Call(served, ENDPOINTS[task], caller)) as call:
        begin = asyncio.to_thread(Transcript.begin, call, asked, upload.file, upload.name)
        transcript = await while_connected(request.receive, begin)
        if asked.stream:
            events = transcript.events()
            # What is wrong from the beginning still has a status line to say so.
            first = await while_connected(request.receive, _next(events))
            return EventStream(_from(first, events), transcript.close)
        page = await while_connected(request.receive, transcript.page(asked))
    return Response(page, media_type=_MEDIA_TYPES[asked.response_format])


def require_extra() -> None:
    """Raises ApiError 501 if a package of the extra ``speech`` is missing. Slow the first time."""
    from galley import speech

    try:
        speech.require_extra()
    except SettingsError as error:
        raise ApiError(
            501, str(error), type="internal_error", code="speech_not_installed"
        ) from error


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event
