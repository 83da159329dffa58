"""The events that ``/v1/realtime`` accepts, and the settings of a transcription session.

OpenAI has two forms of them: ``session.update`` with nested settings, and the older
``transcription_session.update`` with flat ones. Settings that an update omits keep their values.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from galley.errors import RequestError
from galley.protocols.common.messages import Strict

if TYPE_CHECKING:
    from galley.speech.options import LiveOptions, TurnOptions
    from galley.speech.pcm import Coding

INTERIM: Final = "item.input_audio_transcription.interim"
"""Value of ``include`` that requests events with text that is not final; Galley's extension.

OpenAI's log-probabilities are accepted but not sent; the reported session omits them, with a warning.
"""

LOGPROBS: Final = "item.input_audio_transcription.logprobs"

MAX_EVENT_ID: Final = 512

Include: TypeAlias = Annotated[
    list[
        Literal["item.input_audio_transcription.interim", "item.input_audio_transcription.logprobs"]
    ],
    Meta(max_length=8),
]


_FLAT_FORMATS: Final[dict[str, Literal["audio/pcm", "audio/pcmu", "audio/pcma"]]] = {
    "pcm16": "audio/pcm",
    "g711_ulaw": "audio/pcmu",
    "g711_alaw": "audio/pcma",
}


class ServerVad(Strict, frozen=True, kw_only=True):
    """``turn_detection`` in which turns end with silence.

    Settings of the response have no effect: a transcription session makes none.
    """

    type: Literal["server_vad"]
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: None = None
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None


class Transcription(Strict, frozen=True, kw_only=True):
    """The model, language and prompt of the transcription."""

    model: str | None = None
    language: str | UnsetType | None = UNSET
    prompt: Annotated[str, Meta(max_length=10_000)] | UnsetType | None = UNSET


class Format(Strict, frozen=True, kw_only=True):
    """Mono samples: 16-bit little-endian PCM (only 24,000 Hz in OpenAI's API), or 8-bit G.711."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = None

    def __post_init__(self) -> None:
        low, high = (8_000, 48_000) if self.type == "audio/pcm" else (8_000, 8_000)
        if self.rate is not None and not low <= self.rate <= high:
            range_ = f"{low}" if low == high else f"between {low} and {high}"
            raise RequestError(
                f"rate: must be {range_} Hz for {self.type}, got {self.rate}", param="rate"
            )

    def hertz(self, before: str, rate: int) -> int:
        """Return the sample rate in Hz.

        Args:
            before: type of the previous format.
            rate: its rate, kept if the type is the same and this format has no rate.
        """
        if self.rate is not None:
            return self.rate
        return rate if self.type == before else 24_000 if self.type == "audio/pcm" else 8_000


class NoiseReduction(Strict, frozen=True, kw_only=True):
    """Accepted and not applied: the session that the server reports has none, and a warning."""

    type: Literal["near_field", "far_field"]


class AudioInput(Strict, frozen=True, kw_only=True):
    """``session.audio.input``."""

    format: Format | None = None
    noise_reduction: NoiseReduction | None = None
    transcription: Transcription | None = None
    turn_detection: ServerVad | UnsetType | None = UNSET


class Audio(Strict, frozen=True, kw_only=True):
    """``session.audio``."""

    input: AudioInput | None = None


class Session(Strict, frozen=True, kw_only=True):
    """``session`` of ``session.update``."""

    type: Literal["transcription"]
    audio: Audio | None = None
    include: Include | None = None

    @property
    def source(self) -> AudioInput:
        """The settings of the audio."""
        return (self.audio and self.audio.input) or AudioInput()


class FlatSession(Strict, frozen=True, kw_only=True):
    """``session`` of ``transcription_session.update``."""

    input_audio_format: Literal["pcm16", "g711_ulaw", "g711_alaw"] | None = None
    input_audio_noise_reduction: NoiseReduction | None = None
    input_audio_transcription: Transcription | None = None
    turn_detection: ServerVad | UnsetType | None = UNSET
    include: Include | None = None

    @property
    def source(self) -> AudioInput:
        """The settings of the audio, in the form of the newer dialect."""
        name = self.input_audio_format
        return AudioInput(
            format=None if name is None else Format(type=_FLAT_FORMATS[name]),
            noise_reduction=self.input_audio_noise_reduction,
            transcription=self.input_audio_transcription,
            turn_detection=self.turn_detection,
        )


class Event(Strict, frozen=True, kw_only=True):
    """Fields that every event may have."""

    type: str
    event_id: Annotated[str, Meta(max_length=MAX_EVENT_ID)] | None = None


class SessionUpdate(Event, frozen=True, kw_only=True):
    """``session.update``."""

    session: Session


class FlatSessionUpdate(Event, frozen=True, kw_only=True):
    """``transcription_session.update``."""

    session: FlatSession


class Append(Event, frozen=True, kw_only=True):
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
        rate: sample rate in Hz.
        language: spoken language; None: detected.
        turns: how the end of a turn is detected; None: the client commits turns.
        interim: whether text that is not final is sent too.
        flat: whether the client uses the older dialect.
        warnings: what the last update has that has no effect.
    """

    model: str
    turns: "TurnOptions | None"
    format: str = "audio/pcm"
    rate: int = 24_000
    language: str | None = None
    prompt: str = ""
    interim: bool = False
    flat: bool = False
    warnings: tuple[str, ...] = ()

    def updated(self, event: SessionUpdate | FlatSessionUpdate) -> "Settings":
        """Return the settings changed by an event.

        Raises:
            RequestError: a value is out of range, or another model is named; ``param`` names it.
        """
        flat = isinstance(event, FlatSessionUpdate)
        session, source = event.session, event.session.source
        changes: dict[str, Any] = {"flat": flat, "warnings": _warnings(event.session)}
        if session.include is not None:
            changes["interim"] = INTERIM in session.include
        if source.format is not None:
            changes["format"] = source.format.type
            changes["rate"] = source.format.hertz(self.format, self.rate)
        settings = dataclasses.replace(self, **changes)
        try:
            if source.transcription is not None:
                settings = settings._with_transcription(source.transcription)
            if source.turn_detection is not UNSET:
                settings = settings._with_turns(source.turn_detection)
            settings.options()
        except RequestError as error:
            raise settings.located(error) from None
        return settings

    def located(self, error: RequestError) -> RequestError:
        """Return an error of ``galley.speech``'s options with the path of its field in an event."""
        of_transcription = error.param in Transcription.__struct_fields__
        if self.flat:
            parent = "input_audio_transcription" if of_transcription else "turn_detection"
        else:
            parent = f"audio.input.{'transcription' if of_transcription else 'turn_detection'}"
        return RequestError(str(error), param=f"session.{parent}.{error.param}", code=error.code)

    @property
    def coding(self) -> "Coding":
        """The format as ``galley.speech`` names it."""
        return _CODINGS[self.format]

    def options(self) -> "LiveOptions":
        """Return the settings as ``galley.speech``'s options.

        Raises:
            RequestError: the language is unknown.
        """
        from galley.speech.options import LiveOptions, TurnOptions

        return LiveOptions(
            language=self.language,
            prompt=self.prompt,
            turns=self.turns or TurnOptions(),
            commit_turns=self.turns is not None,
        )

    def shown(self, session_id: str) -> dict[str, Any]:
        """Return ``session`` of the server's events."""
        transcription = {"model": self.model, "language": self.language, "prompt": self.prompt}
        turns = self.turns and {"type": "server_vad", **dataclasses.asdict(self.turns)}
        include = [INTERIM] if self.interim else None
        warned = {"warnings": list(self.warnings)} if self.warnings else {}
        if self.flat:
            names: dict[str, str] = {value: key for key, value in _FLAT_FORMATS.items()}
            return {
                **warned,
                "id": session_id,
                "object": "realtime.transcription_session",
                "input_audio_format": names[self.format],
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": None,
                "turn_detection": turns,
                "include": include,
            }
        return {
            **warned,
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
                f"this connection uses {self.model!r}; choose another model in the URL: ?model=...",
                param="model",
                code="model_not_found",
            )
        language = self.language if given.language is UNSET else given.language
        prompt = self.prompt if given.prompt is UNSET else given.prompt or ""
        return dataclasses.replace(self, language=language, prompt=prompt)

    def _with_turns(self, given: ServerVad | None) -> "Settings":
        from galley.speech.options import TurnOptions

        if given is None:
            return dataclasses.replace(self, turns=None)
        names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
        values = {name: value for name in names if (value := getattr(given, name)) is not None}
        return dataclasses.replace(
            self, turns=dataclasses.replace(self.turns or TurnOptions(), **values)
        )


def _warnings(session: Session | FlatSession) -> tuple[str, ...]:
    """Return a sentence for each part of an update that is accepted and has no effect."""
    found = []
    if session.source.noise_reduction is not None:
        found.append("noise_reduction is not applied: the model is given the audio as it is")
    if LOGPROBS in (session.include or ()):
        found.append(f"include: {LOGPROBS} is not sent, transcripts have no log-probabilities")
    return tuple(found)
