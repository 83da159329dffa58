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
from galley.protocols.openai.realtime.eagerness import DEFAULT_SILENCE_MS, Eagerness

if TYPE_CHECKING:
    from galley.speech.options import LiveOptions, TurnOptions
    from galley.speech.pcm import Coding

INTERIM: Final = "item.input_audio_transcription.interim"
"""Value of ``include`` that requests events with text that is not final; Galley's extension.

OpenAI's log-probabilities are accepted but not sent; the reported session omits them, with a warning.
"""

TIMING: Final = "response.timing"
"""Value of ``include`` that requests when the parts of each answer were ready; Galley's extension."""

LOGPROBS: Final = "item.input_audio_transcription.logprobs"

MAX_EVENT_ID: Final = 512

Include: TypeAlias = Annotated[
    list[
        Literal[
            "item.input_audio_transcription.interim",
            "item.input_audio_transcription.logprobs",
            "response.timing",
        ]
    ],
    Meta(max_length=8),
]

_FLAT_FORMATS: Final[dict[str, Literal["audio/pcm", "audio/pcmu", "audio/pcma"]]] = {
    "pcm16": "audio/pcm",
    "g711_ulaw": "audio/pcmu",
    "g711_alaw": "audio/pcma",
}


class ServerVad(Strict, frozen=True, kw_only=True, tag_field="type", tag="server_vad"):
    """``turn_detection`` in which turns end with silence.

    Settings of the response have no effect in a transcription session, which makes none.
    """

    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: Annotated[int, Meta(ge=5_000, le=30_000)] | UnsetType | None = UNSET
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None


class SemanticVad(Strict, frozen=True, kw_only=True, tag_field="type", tag="semantic_vad"):
    """``turn_detection`` in which a language model says how likely it is that a turn is over."""

    create_response: bool | None = None
    interrupt_response: bool | None = None
    eagerness: Eagerness | None = None


TurnDetection: TypeAlias = ServerVad | SemanticVad | UnsetType | None


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
    turn_detection: TurnDetection = UNSET


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
    turn_detection: TurnDetection = UNSET
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

_SETTLE_MS: Final = 128
"""Silence in a conversation after which what was said is transcribed and answered."""

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
        eagerness: of ``semantic_vad``; None: silence alone ends turns.
        idle_timeout_ms: silence after a response that begins another one; None: no silence does.
        interim: whether text that is not final is sent too.
        timing: whether each answer's times are sent.
        flat: whether the client uses the older dialect.
        converses: whether a language model answers.
        warnings: what the last update has that has no effect.
    """

    model: str
    turns: "TurnOptions | None"
    format: str = "audio/pcm"
    rate: int = 24_000
    language: str | None = None
    prompt: str = ""
    eagerness: Eagerness | None = None
    idle_timeout_ms: int | None = None
    interim: bool = False
    timing: bool = False
    flat: bool = False
    converses: bool = False
    warnings: tuple[str, ...] = ()

    def updated(self, event: SessionUpdate | FlatSessionUpdate) -> "Settings":
        """Return the settings changed by an event.

        Raises:
            RequestError: a value is out of range, or another model is named; ``param`` names it.
        """
        flat = isinstance(event, FlatSessionUpdate)
        session, source = event.session, event.session.source
        changes: dict[str, Any] = {
            "flat": flat,
            "warnings": _warnings(event.session, converses=self.converses),
        }
        if session.include is not None:
            changes["interim"] = INTERIM in session.include
            changes["timing"] = self.converses and TIMING in session.include
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

        options = LiveOptions(
            language=self.language,
            prompt=self.prompt,
            turns=self.turns or TurnOptions(),
            commit_turns=self.turns is not None,
        )
        if self.turns is None or not self.converses:
            return options
        return dataclasses.replace(options, pauses=True, settle_ms=_SETTLE_MS)

    def shown(self, session_id: str) -> dict[str, Any]:
        """Return ``session`` of the server's events."""
        transcription = {"model": self.model, "language": self.language, "prompt": self.prompt}
        wanted = [name for name, on in ((INTERIM, self.interim), (TIMING, self.timing)) if on]
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
                "turn_detection": self._shown_turns(),
                "include": wanted or None,
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
                    "turn_detection": self._shown_turns(),
                }
            },
            "include": wanted or None,
        }

    def _shown_turns(self) -> dict[str, Any] | None:
        if self.turns is None:
            return None
        if self.eagerness is not None:
            return {"type": "semantic_vad", "eagerness": self.eagerness}
        shown = {"type": "server_vad", **dataclasses.asdict(self.turns)}
        return shown | ({"idle_timeout_ms": self.idle_timeout_ms} if self.converses else {})

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

    def _with_turns(self, given: ServerVad | SemanticVad | None) -> "Settings":
        from galley.speech.options import TurnOptions

        if given is None:
            return dataclasses.replace(self, turns=None, eagerness=None, idle_timeout_ms=None)
        if isinstance(given, SemanticVad):
            return self._with_semantic(given)
        if given.idle_timeout_ms is not UNSET:
            if given.idle_timeout_ms is not None and not self.converses:
                raise RequestError(
                    "idle_timeout_ms begins a response, and a transcription session has none: leave it out",
                    param="idle_timeout_ms",
                )
            self = dataclasses.replace(self, idle_timeout_ms=given.idle_timeout_ms)
        if self.eagerness is not None:
            self = dataclasses.replace(self, turns=None, eagerness=None)
        names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
        values = {name: value for name in names if (value := getattr(given, name)) is not None}
        return dataclasses.replace(
            self, turns=dataclasses.replace(self.turns or TurnOptions(), **values)
        )

    def _with_semantic(self, given: SemanticVad) -> "Settings":
        from galley.speech.options import TurnOptions

        if not self.converses:
            raise RequestError(
                "semantic_vad needs a language model, and a transcription session has none: take "
                "server_vad, or connect with ?model= and the name of a model that generates text",
                param="type",
            )
        eagerness = given.eagerness or self.eagerness or "auto"
        turns = TurnOptions(silence_duration_ms=DEFAULT_SILENCE_MS)
        return dataclasses.replace(self, turns=turns, eagerness=eagerness, idle_timeout_ms=None)


def _warnings(session: Session | FlatSession, *, converses: bool) -> tuple[str, ...]:
    """Return a sentence for each part of an update that is accepted and has no effect."""
    found = []
    if session.source.noise_reduction is not None:
        found.append("noise_reduction is not applied: the model is given the audio as it is")
    if TIMING in (session.include or ()) and not converses:
        found.append(f"include: {TIMING} is not sent, a transcription session has no responses")
    if LOGPROBS in (session.include or ()):
        found.append(f"include: {LOGPROBS} is not sent, transcripts have no log-probabilities")
    return tuple(found)
