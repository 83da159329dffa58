"""Requests of ``/v1/audio/speech``, field by field."""

from typing import Annotated, Literal

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.service.voice_requests import FASTEST, SLOWEST
from galley.tts.encode import AudioFormat
from galley.tts.pieces import pieces_of

MAX_CHARACTERS = 65536
"""Longest text of a request: more than an hour of speech."""


class VoiceId(Strict, frozen=True, kw_only=True):
    """``voice`` as an object."""

    id: str


class SpeechRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/audio/speech`."""

    input: Annotated[str, Meta(max_length=MAX_CHARACTERS, description="The text to speak.")]
    model: Annotated[
        str | None,
        Meta(
            description="The served model's name, as in `GET /v1/models`. Default: the only suitable model."
        ),
    ] = None
    voice: Annotated[
        str | VoiceId | None,
        Meta(description="Name of one of the model's voices. Default: the first."),
    ] = None
    response_format: AudioFormat = "mp3"
    speed: Annotated[
        float, Meta(ge=SLOWEST, le=FASTEST, description="Pace, compared with the voice's own.")
    ] = 1.0
    stream_format: Annotated[
        Literal["audio", "sse"],
        Meta(description="`sse`: events with parts of the audio, in base64."),
    ] = "audio"
    instructions: Annotated[
        str | None, Meta(description="Refused unless it is empty: these voices follow none.")
    ] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-100, le=100)] | None,
        Meta(description="Lower values are served first."),
    ] = None

    def voice_name(self) -> str | None:
        """Return the name of the voice."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    def pieces(self, *, streams: bool) -> list[str]:
        """Return the text in pieces to speak.

        Args:
            streams: whether the model's audio of one piece comes in parts.

        Raises:
            RequestError: there is nothing to speak, or ``instructions`` are given.
        """
        if self.instructions:
            raise RequestError(
                "instructions are not supported: the voice has only one style; leave them out, or "
                "choose another voice",
                param="instructions",
            )
        pieces = pieces_of(self.input, clause_first=not streams)
        if not pieces:
            raise RequestError(f"input has no word to speak: {self.input[:100]!r}", param="input")
        return pieces
