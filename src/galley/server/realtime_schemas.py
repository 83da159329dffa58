"""The events that ``/v1/realtime`` takes, and the settings of a transcription session.

OpenAI has two spellings of them: ``session.update`` with nested settings, and the older
``transcription_session.update`` with flat ones. Of a setting that an update leaves out the value stays.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from galley.errors import RequestError
from galley.server.schemas import Strict

if TYPE_CHECKING:
    from galley.speech.options import LiveOptions, TurnOptions
    from galley.speech.pcm import Coding

INTERIM: Final = "item.input_audio_transcription.interim"
"""What ``include`` may ask for: events with text that is not final. Galley's own."""

MAX_EVENT_ID: Final = 512

Include = Annotated[list[Literal["item.input_audio_transcription.interim"]], Field(max_length=8)]


_FLAT_FORMATS: Final = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


class ServerVad(Strict):
    """Turns end with silence."""

    type: Literal["server_vad"]
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None


class Transcription(Strict):
    """What is transcribed how."""

    model: str | None = None
    language: str | None = None
    prompt: Annotated[str, Field(max_length=10_000)] | None = None


class Pcm16(Strict):
    """Samples of 16 bits, little-endian, mono. OpenAI has 24,000 Hz alone."""

    type: Literal["audio/pcm"]
    rate: Annotated[int, Field(ge=8_000, le=48_000)] = 24_000


class G711(Strict):
    """A telephone's samples of 8 bits."""

    type: Literal["audio/pcmu", "audio/pcma"]
    rate: Literal[8_000] = 8_000


class AudioInput(Strict):
    """``session.audio.input``."""

    format: Annotated[Pcm16 | G711, Field(discriminator="type")] | None = None
    noise_reduction: None = None
    transcription: Transcription | None = None
    turn_detection: ServerVad | None = None


class Audio(Strict):
    """``session.audio``."""

    input: AudioInput | None = None


class Session(Strict):
    """``session`` of ``session.update``."""

    type: Literal["transcription"]
    audio: Audio | None = None
    include: Include | None = None

    def nested(self) -> "Session":
        """Itself."""
        return self


class FlatSession(Strict):
    """``session`` of ``transcription_session.update``."""

    input_audio_format: Literal["pcm16", "g711_ulaw", "g711_alaw"] | None = None
    input_audio_noise_reduction: None = None
    input_audio_transcription: Transcription | None = None
    turn_detection: ServerVad | None = None
    include: Include | None = None

    def nested(self) -> Session:
        """The same in the other dialect."""
        source = {
            name.removeprefix("input_audio_"): value
            for name, value in self.model_dump(exclude_unset=True, exclude={"include"}).items()
        }
        if source.get("format") is not None:
            source["format"] = {"type": _FLAT_FORMATS[source["format"]]}
        audio = {"input": source}
        return Session.model_validate(
            {"type": "transcription", "audio": audio, "include": self.include}
        )


class Event(Strict):
    """What every event may have."""

    type: str
    event_id: Annotated[str, Field(max_length=MAX_EVENT_ID)] | None = None


class SessionUpdate(Event):
    """``session.update``."""

    session: Session


class FlatSessionUpdate(Event):
    """``transcription_session.update``."""

    session: FlatSession


class Append(Event):
    """``input_audio_buffer.append``: base64 of audio in the session's format."""

    audio: str


EVENTS: Final[dict[str, type[Event]]] = {
    "session.update": SessionUpdate,
    "transcription_session.update": FlatSessionUpdate,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Event,
    "input_audio_buffer.clear": Event,
}

_CODINGS: Final[dict[str, "Coding"]] = {
    "audio/pcm": "s16le",
    "audio/pcmu": "mulaw",
    "audio/pcma": "alaw",
}


@dataclass(frozen=True)
class Settings:
    """All settings of one session.

    Attributes:
        model: the served model's name.
        format: "audio/pcm", "audio/pcmu" or "audio/pcma".
        rate: in Hz.
        language: None: detected.
        turns: when they end; None: the client commits them.
        interim: tell text that is not final, too.
        flat: the client speaks the older dialect.
    """

    model: str
    turns: "TurnOptions | None"
    format: str = "audio/pcm"
    rate: int = 24_000
    language: str | None = None
    prompt: str = ""
    interim: bool = False
    flat: bool = False

    def updated(self, event: SessionUpdate | FlatSessionUpdate) -> "Settings":
        """With what an event says.

        Raises:
            RequestError: a value is out of range, or it is of another model; ``param`` names it.
        """
        flat = isinstance(event, FlatSessionUpdate)
        session = event.session.nested()
        source = (session.audio and session.audio.input) or AudioInput()
        changes: dict[str, Any] = {"flat": flat}
        if session.include is not None:
            changes["interim"] = INTERIM in session.include
        if source.format is not None:
            changes["format"] = source.format.type
            changes["rate"] = source.format.rate
        settings = dataclasses.replace(self, **changes)
        try:
            if source.transcription is not None:
                settings = settings._with_transcription(source.transcription)
            if "turn_detection" in source.model_fields_set:
                settings = settings._with_turns(source.turn_detection)
            settings.options()
        except RequestError as error:
            raise settings.located(error) from None
        return settings

    def located(self, error: RequestError) -> RequestError:
        """An error of the speech room's options, with the place of its value in an event."""
        of_transcription = error.param in Transcription.model_fields
        if self.flat:
            parent = "input_audio_transcription" if of_transcription else "turn_detection"
        else:
            parent = f"audio.input.{'transcription' if of_transcription else 'turn_detection'}"
        return RequestError(str(error), param=f"session.{parent}.{error.param}", code=error.code)

    @property
    def coding(self) -> "Coding":
        """The format as the speech room names it."""
        return _CODINGS[self.format]

    def options(self) -> "LiveOptions":
        """The same as the speech room has it. Raises RequestError for a language that is none."""
        from galley.speech.options import LiveOptions, TurnOptions

        return LiveOptions(
            language=self.language,
            prompt=self.prompt,
            turns=self.turns or TurnOptions(),
            commit_turns=self.turns is not None,
        )

    def shown(self, session_id: str) -> dict[str, Any]:
        """``session`` of the server's events."""
        transcription = {"model": self.model, "language": self.language, "prompt": self.prompt}
        turns = self.turns and {"type": "server_vad", **dataclasses.asdict(self.turns)}
        include = [INTERIM] if self.interim else None
        if self.flat:
            names = {value: key for key, value in _FLAT_FORMATS.items()}
            return {
                "id": session_id,
                "object": "realtime.transcription_session",
                "input_audio_format": names[self.format],
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": None,
                "turn_detection": turns,
                "include": include,
            }
        return {
            "id": session_id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": self.format, "rate": self.rate},
                    "transcription": transcription,
                    "noise_reduction": None,
                    "turn_detection": turns,
                }
            },
            "include": include,
        }

    def _with_transcription(self, given: Transcription) -> "Settings":
        if given.model not in (None, self.model):
            raise RequestError(
                f"this connection is to {self.model!r}; name another model in its URL: ?model=...",
                param="model",
                code="model_not_found",
            )
        changes = given.model_dump(include={"language", "prompt"}, exclude_unset=True)
        settings = dataclasses.replace(self, **changes)
        return dataclasses.replace(settings, prompt=settings.prompt or "")

    def _with_turns(self, given: ServerVad | None) -> "Settings":
        from galley.speech.options import TurnOptions

        if given is None:
            return dataclasses.replace(self, turns=None)
        values = given.model_dump(exclude={"type"}, exclude_none=True)
        return dataclasses.replace(
            self, turns=dataclasses.replace(self.turns or TurnOptions(), **values)
        )
