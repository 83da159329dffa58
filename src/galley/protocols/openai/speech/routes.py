"""``POST /v1/audio/speech``: speaks a text."""

from contextlib import ExitStack
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from galley.errors import SettingsError
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.http.admit import admit
from galley.protocols.http.byte_stream import ByteStream
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, begun
from galley.protocols.openai.speech.answers import SPEECH, Speech
from galley.protocols.openai.speech.schemas import SpeechRequest
from galley.tts.encode import MEDIA_TYPES

_FILE: Final = {"type": "string", "format": "binary"}


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def speech(request: Request) -> Response:
        """Speak a text."""
        parsed, caller, served = await admit(
            models, request, SpeechRequest, "speak", prompt=lambda parsed: parsed.input
        )
        answer = _started(served, parsed, caller)
        with ExitStack() as held:
            held.callback(answer.close)
            if parsed.stream_format == "sse":
                events = await begun(request.receive, answer.events())
                return EventStream(events, held.pop_all().close)
            media_type = MEDIA_TYPES[parsed.response_format]
            parts = await begun(request.receive, answer.file())
            return ByteStream(parts, held.pop_all().close, media_type=media_type)

    answers: dict[str, Any] = dict.fromkeys(MEDIA_TYPES.values(), _FILE)
    events = {"description": "Events, each with JSON as its data."}
    return [
        Operation(
            "POST",
            SPEECH,
            speech,
            tag="audio",
            body=SpeechRequest,
            answers={200: {**answers, "text/event-stream": events}},
            about="The audio in `response_format`, sent as it is made",
            errors=(501,),
        )
    ]


def _started(*request: Any) -> Speech:
    try:
        return Speech.start(*request)
    except SettingsError as error:
        raise ApiError(
            501, str(error), type="internal_error", code="speech_not_installed"
        ) from error
