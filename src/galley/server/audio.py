"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: a recording, and what is said in it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from galley.errors import SettingsError
from galley.server.auth import cache_salt
from galley.server.errors import HTTPError
from galley.server.forms import Upload, read_form
from galley.server.generate import Origin
from galley.server.registry import Registry
from galley.server.schemas import TranscriptionRequest, TranslationRequest
from galley.server.served import ServedModel
from galley.server.sse import EventStream, while_connected
from galley.types import Output

if TYPE_CHECKING:
    from galley.speech.chunk_source import ChunkSource
    from galley.speech.results import Info, Segment
    from galley.speech.session import Session

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
_ENDPOINTS: Final = {"transcribe": TRANSCRIPTIONS, "translate": TRANSLATIONS}
Event: TypeAlias = Mapping[str, Any]
_CHUNKS_IN_FLIGHT: Final = 8
"""Of one recording; the engine is shared with everybody else's."""

_MEDIA_TYPES: Final = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


def router(models: Registry) -> APIRouter:
    """The routes, answered by ``models``."""
    routes = APIRouter(tags=["audio"])
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/plain": {"schema": {"type": "string"}},
                "text/vtt": {"schema": {"type": "string"}},
                "text/event-stream": {"schema": {"type": "string"}},
            },
            "description": "The transcript in `response_format`; with `stream`, as events",
        }
    }

    @routes.post(TRANSCRIPTIONS, responses=answers, response_model=None)
    async def transcriptions(request: Request) -> Response:
        """What is said in a recording, in its language."""
        return await _answer(models, request, TranscriptionRequest, "transcribe")

    @routes.post(TRANSLATIONS, responses=answers, response_model=None)
    async def translations(request: Request) -> Response:
        """What is said in a recording, in English."""
        return await _answer(models, request, TranslationRequest, "translate")

    return routes


async def _answer(
    models: Registry,
    request: Request,
    model: type[TranslationRequest],
    task: Literal["transcribe", "translate"],
) -> Response:
    models.expect(task)
    await asyncio.to_thread(require_extra)
    asked, upload = await read_form(request, model, max_bytes=models.settings.max_audio_bytes)
    served = models.find(asked.model, task)
    origin = Origin.of(request)
    begun = await while_connected(
        request.receive, asyncio.to_thread(_begin, served, asked, upload, origin, _ENDPOINTS[task])
    )
    if asked.stream:
        events = begun.events()
        # What is wrong from the beginning still has a status line to say so.
        first = await while_connected(request.receive, _next(events))
        return EventStream(_from(first, events), begun.close)
    page = await while_connected(request.receive, begun.page(asked))
    return Response(page, media_type=_MEDIA_TYPES[asked.response_format])


def require_extra() -> None:
    """Raises HTTPError 501 if a package of the extra ``speech`` is missing. Slow the first time."""
    from galley import speech

    try:
        speech.require_extra()
    except SettingsError as error:
        raise HTTPError(
            501, str(error), type="internal_error", code="speech_not_installed"
        ) from error


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


def _begin(
    served: ServedModel, asked: TranslationRequest, upload: Upload, origin: Origin, endpoint: str
) -> "Transcript":
    """Open the recording and find out whether it can be transcribed. Takes a while.

    Raises:
        ModelError, AudioError, RequestError: the recording or the request is wrong for this model.
    """
    from galley.speech.audio import Recording
    from galley.speech.session import Session

    model = served.speech_model()
    options = asked.options()
    session = Session(
        model.tokens,
        options,
        origin.request_id,
        max_chunks=_CHUNKS_IN_FLIGHT,
        cache_salt=cache_salt(origin.key, None),
    )
    recording = Recording(
        upload.file, name=upload.name, max_seconds=served.settings.max_audio_seconds
    )
    chunks = model.chunks(recording, options)
    return Transcript(served, session, chunks, origin, endpoint)


class Transcript:
    """One recording on its way through the served engine."""

    def __init__(
        self,
        served: ServedModel,
        session: "Session",
        chunks: "ChunkSource",
        origin: Origin,
        endpoint: str,
    ) -> None:
        """Made by :func:`_begin`."""
        self._served = served
        self._session = session
        self._chunks = chunks
        self._origin = origin
        self._endpoint = endpoint
        self._tokens = 0

    async def page(self, asked: TranslationRequest) -> bytes:
        """The whole transcript as it was asked for."""
        from galley.speech import captions

        segments = [segment async for segment in self._segments()]
        match asked.response_format:
            case "json":
                return captions.as_json(segments)
            case "text":
                return (captions.text_of(segments) + "\n").encode()
            case "srt":
                return "".join(captions.as_srt(segments)).encode()
            case "vtt":
                return "".join(captions.as_vtt(segments)).encode()
            case "verbose_json":
                return captions.as_verbose_json(segments, self._info(), asked.granularities)

    async def events(self) -> AsyncGenerator[Event, None]:
        """OpenAI's events: each segment's text as it becomes certain, and all of it at the end."""
        from galley.speech.captions import text_of

        segments: list[Segment] = []
        async with aclosing(self._segments()) as found:
            async for segment in found:
                delta = segment.text if segments else segment.text.lstrip()
                segments.append(segment)
                yield {"type": "transcript.text.delta", "delta": delta}
        yield {"type": "transcript.text.done", "text": text_of(segments)}

    def close(self) -> None:
        """Close the recording, if nobody has taken its first segment."""
        self._chunks.close()

    def _info(self) -> "Info":
        return self._chunks.info(self._session.language or "")

    async def _segments(self) -> "AsyncGenerator[Segment, None]":
        from galley.speech.async_transcribe import transcribe_async

        engine, reason = self._served.backend().engine, "cancelled"
        try:
            async with aclosing(
                transcribe_async(engine, self._session, self._chunks, self._seen)
            ) as segments:
                async for segment in segments:
                    yield segment
            reason = "stop"
        except Exception:
            reason = "error"
            raise
        finally:
            info = self._info()
            self._served.metrics.audio_heard(self._endpoint, info.duration, reason)
            self._origin.facts.update(
                audio=f"{info.duration:.1f}s", generated=self._tokens, finish=reason
            )

    def _seen(self, output: Output) -> None:
        self._tokens += len(output.tokens)
        self._served.metrics.step_seen(len(output.tokens))
