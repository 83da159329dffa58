"""Requests of transcriptions and translations, field by field."""

import base64
import binascii
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.redact.spans import Kind
from galley.types.audio import SampleType

if TYPE_CHECKING:
    from galley.speech.diarize.options import DiarizeOptions
    from galley.speech.options import QualityRules, SpeechOptions, TranscribeOptions
    from galley.speech.sources import RawPcm

Granularity = Literal["segment", "word"]
_Format = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
_SPEAKER_FIELDS: Final = (
    "known_speaker_names",
    "known_speaker_references",
    "num_speakers",
    "min_speakers",
    "max_speakers",
)
Temperature = Annotated[float, Meta(ge=0.0, le=1.0)]
_Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
"""A number that further checks bound: larger ones do not even fit into messages between processes."""


class ServerVad(Strict, frozen=True, kw_only=True):
    """``chunking_strategy`` as an object: how speech is found."""

    type: Literal["server_vad"]
    threshold: float | None = None
    prefix_padding_ms: _Int32 | None = None
    silence_duration_ms: _Int32 | None = None

    def options(self) -> "SpeechOptions":
        """Return the strategy as options of speech detection, with OpenAI's defaults.

        Raises:
            RequestError: a value is out of range.
        """
        from galley.speech.options import SpeechOptions

        silence = 200 if self.silence_duration_ms is None else self.silence_duration_ms
        try:
            return SpeechOptions(
                threshold=0.5 if self.threshold is None else self.threshold,
                min_silence_ms=silence,
                pad_ms=max(0, silence // 2),
                lead_ms=300 if self.prefix_padding_ms is None else self.prefix_padding_ms,
            )
        except RequestError as error:
            names = {"min_silence_ms": "silence_duration_ms", "lead_ms": "prefix_padding_ms"}
            field = error.param or ""
            name = names.get(field, field)
            raise RequestError(
                str(error).replace(field, name, 1), param=f"chunking_strategy.{name}"
            ) from None


class TranslationRequest(Strict, frozen=True, kw_only=True):
    """Form of ``POST /v1/audio/translations``, without ``file``; fields are parsed from text."""

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[
        Temperature | tuple[Temperature, ...],
        Meta(description="0: raised where a transcript is bad. Several are tried in turn."),
    ] = 0.0
    stream: bool = False
    track: Annotated[
        _Int32 | None,
        Meta(description="Number of the audio track, from 1; default: the file's default track."),
    ] = None
    channel: Annotated[
        _Int32 | None,
        Meta(description="Which of the track's channels, from 1; default: all, mixed."),
    ] = None
    multichannel: Annotated[
        bool,
        Meta(description="Transcribe each channel on its own; segments have a `channel`."),
    ] = False
    raw_format: Annotated[
        SampleType | None,
        Meta(description="Encoding of a file without a header; needs `sample_rate`."),
    ] = None
    sample_rate: Annotated[
        Annotated[int, Meta(ge=4_000, le=768_000)] | None,
        Meta(description="Sample rate of a file without a header, in Hz."),
    ] = None
    channels: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(description="Channels of a file without a header, interleaved; default: 1."),
    ] = None
    hotwords: Annotated[
        str, Meta(description="Names and terms given to the decoder as a prompt for every chunk.")
    ] = ""
    vad: Annotated[
        bool,
        Meta(description="Skip parts without speech; false: transcribe the whole recording."),
    ] = True
    vad_threshold: Annotated[float | None, Meta(description="Minimum probability of speech.")] = (
        None
    )
    vad_neg_threshold: float | None = None
    vad_min_speech_ms: _Int32 | None = None
    vad_min_silence_ms: _Int32 | None = None
    vad_pad_ms: _Int32 | None = None
    beam_size: Annotated[
        _Int32 | None, Meta(description="Beams at temperature 0; 1 is greedy; default: 5.")
    ] = None
    best_of: Annotated[
        _Int32 | None, Meta(description="Texts sampled at a temperature above 0; default: 5.")
    ] = None
    compression_ratio_threshold: Annotated[
        float | UnsetType | None,
        Meta(description="Text that compresses more and loops is tried again; null: no limit."),
    ] = UNSET
    log_prob_threshold: Annotated[
        float | UnsetType | None,
        Meta(description="Text with a lower mean log-probability is tried again; null: no limit."),
    ] = UNSET
    no_speech_threshold: Annotated[
        float | UnsetType | None,
        Meta(description="Probability of no speech above which unlikely text is left out."),
    ] = UNSET
    condition_on_previous_text: bool = False
    hallucination_silence_threshold: Annotated[
        float | None,
        Meta(description="Leave out unlikely text with more seconds of silence than this around."),
    ] = None
    multilingual: Annotated[
        bool, Meta(description="Detect the language of each chunk, not only of the first.")
    ] = False
    max_line_width: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most characters of a caption, for srt and vtt."),
    ] = None

    redact: Annotated[
        tuple[Kind | Literal["all"], ...],
        Meta(
            description="Personal data to remove from text, words and tokens, in addition to what the "
            "server's setting `redact` names; found by rules for English."
        ),
    ] = ()

    _streamed: ClassVar[tuple[str, ...]] = ("json", "text")

    @property
    def diarizes(self) -> bool:
        """Whether the transcript is one by speaker."""
        return False

    def diarization(self) -> "DiarizeOptions | None":
        """Return how speakers are found; None: they are not wanted, or each has a channel.

        Raises:
            RequestError: a field is wrong, or not one of this request's format.
        """
        return None

    @property
    def raw(self) -> "RawPcm | None":
        """The format of a file without a header; None: the file has one.

        Raises:
            RequestError: a field is missing, or conflicts with the others.
        """
        from galley.speech.sources import raw_pcm

        return raw_pcm(self.raw_format, self.sample_rate, self.channels)

    def kinds(self, server: Iterable[str]) -> tuple[Kind, ...]:
        """Return the kinds to redact; those of the server's setting ``redact`` are among them."""
        from galley.speech.redaction import check_kinds

        return check_kinds((*server, *self.redact))

    def _speech(self) -> "SpeechOptions | None":
        """Return the options of speech detection; None if it is off.

        Raises:
            RequestError: a value is out of range, or given without ``vad``.
        """
        from galley.speech.options import SpeechOptions

        names = [field.name for field in dataclasses.fields(SpeechOptions)]
        given = {name: v for name in names if (v := getattr(self, f"vad_{name}", None)) is not None}
        if not self.vad:
            for name in given:
                raise RequestError(f"vad_{name} needs vad, which is false", param=f"vad_{name}")
            return None
        try:
            return SpeechOptions(**given)
        except RequestError as error:
            raise RequestError(f"vad_{error}", param=f"vad_{error.param}") from None

    def options(self) -> "TranscribeOptions":
        """Return the request as ``galley.speech``'s options.

        Raises:
            RequestError: fields contradict each other.
        """
        from galley.speech.options import TranscribeOptions

        if self.stream and self.response_format not in self._streamed:
            raise RequestError(
                f"stream needs response_format {' or '.join(self._streamed)}, not {self.response_format}",
                param="stream",
            )
        if self.multichannel and (self.stream or self.channel is not None):
            other = "stream" if self.stream else "channel"
            raise RequestError(
                f"multichannel transcribes one channel after another; it cannot be combined with {other}",
                param="multichannel",
            )
        if self.max_line_width is not None and self.response_format not in ("srt", "vtt"):
            raise RequestError(
                f"max_line_width needs response_format srt or vtt, not {self.response_format}",
                param="max_line_width",
            )
        return TranscribeOptions(
            task="translate",
            prompt=self.prompt,
            hotwords=self.hotwords,
            multilingual=self.multilingual,
            word_timestamps=self.max_line_width is not None,
            hallucination_silence_threshold=self.hallucination_silence_threshold,
            speech=self._speech(),
            rules=self._rules(),
        )

    def _rules(self) -> "QualityRules":
        from galley.speech.options import QualityRules

        names = [field.name for field in dataclasses.fields(QualityRules)]
        given: dict[str, Any] = {
            name: value
            for name in names
            if (value := getattr(self, name, UNSET)) is not UNSET
            and (value is not None or name.endswith("threshold"))
        }
        # As in OpenAI's API: a single 0 is raised automatically where a transcript is bad.
        if isinstance(self.temperature, tuple):
            given["temperatures"] = self.temperature
        elif self.temperature:
            given["temperatures"] = (self.temperature,)
        return QualityRules(**given)

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """The units that have timestamps in verbose_json."""
        return ("segment",)


class TranscriptionRequest(TranslationRequest, frozen=True, kw_only=True):
    """Form of ``POST /v1/audio/transcriptions``, without ``file``."""

    language: str | None = None
    chunking_strategy: Annotated[
        Literal["auto"] | ServerVad | None,
        Meta(description='"auto", or how speech is found, in place of the fields `vad_...`.'),
    ] = None
    timestamp_granularities: tuple[Granularity, ...] = ()
    # One more than translations have.
    response_format: _Format = "json"  # type: ignore[assignment]
    known_speaker_names: Annotated[
        tuple[str, ...], Meta(description="Names of known speakers, for diarized_json.")
    ] = ()
    known_speaker_references: Annotated[
        tuple[str, ...],
        Meta(description="A recording of each known speaker, 2 to 10 s, as a data URL."),
    ] = ()
    num_speakers: Annotated[
        _Int32 | None, Meta(description="Number of speakers, for diarized_json; default: found.")
    ] = None
    min_speakers: _Int32 | None = None
    max_speakers: _Int32 | None = None

    _streamed: ClassVar[tuple[str, ...]] = ("json", "text", "diarized_json")

    @property
    def diarizes(self) -> bool:
        """Whether the transcript is one by speaker."""
        return self.response_format == "diarized_json"

    def diarization(self) -> "DiarizeOptions | None":
        """Return how speakers are found; see :meth:`TranslationRequest.diarization`."""
        from galley.speech.diarize.options import DiarizeOptions

        for name in _SPEAKER_FIELDS:
            if getattr(self, name) not in (None, ()):
                if not self.diarizes:
                    raise RequestError(
                        f"{name} needs response_format diarized_json, not {self.response_format}",
                        param=name,
                    )
                if self.multichannel:
                    raise RequestError(
                        f"multichannel treats each channel as a speaker; leave out {name}",
                        param=name,
                    )
        if not self.diarizes or self.multichannel:
            return None
        return DiarizeOptions(
            num_speakers=self.num_speakers,
            min_speakers=self.min_speakers,
            max_speakers=self.max_speakers,
            known_names=self.known_speaker_names,
            known_voices=tuple(map(_reference, self.known_speaker_references)),
        )

    def options(self) -> "TranscribeOptions":
        """Return ``galley.speech``'s options; see :meth:`TranslationRequest.options`."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise RequestError(
                "timestamp_granularities needs response_format verbose_json",
                param="timestamp_granularities",
            )
        options = super().options()
        return dataclasses.replace(
            options,
            task="transcribe",
            language=self.language,
            word_timestamps=options.word_timestamps
            or "word" in self.timestamp_granularities
            or self.diarizes,
        )

    def _speech(self) -> "SpeechOptions | None":
        from galley.speech.options import SpeechOptions

        speech = super()._speech()
        if not isinstance(self.chunking_strategy, ServerVad):
            return speech
        if speech != SpeechOptions():
            raise RequestError(
                "chunking_strategy already sets how speech is found; leave out vad and vad_...",
                param="chunking_strategy",
            )
        return self.chunking_strategy.options()

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """The units that have timestamps; see :attr:`TranslationRequest.granularities`."""
        return self.timestamp_granularities or super().granularities


def _reference(url: str) -> bytes:
    """Return the bytes of a data URL (RFC 2397) in base64.

    Raises:
        RequestError: it is no such URL.
    """
    head, comma, data = url.partition(",")
    try:
        if not (comma and head.lower().startswith("data:") and head.lower().endswith(";base64")):
            raise ValueError("not a data URL")
        return base64.b64decode(data, validate=True)
    except (ValueError, binascii.Error):
        raise RequestError(
            f"known_speaker_references: expected data:audio/wav;base64,..., got {url[:40]!r}",
            param="known_speaker_references",
        ) from None
