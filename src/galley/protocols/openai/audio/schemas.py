"""Requests of transcriptions and translations, field by field."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.types.audio import SampleType

if TYPE_CHECKING:
    from galley.speech.options import SpeechOptions, TranscribeOptions
    from galley.speech.sources import RawPcm

Granularity = Literal["segment", "word"]


class TranslationRequest(Strict, frozen=True, kw_only=True):
    """Form of ``POST /v1/audio/translations``, without ``file``; fields are parsed from text."""

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    stream: bool = False
    track: Annotated[
        int | None,
        Meta(description="Number of the audio track, from 1; default: the file's default track."),
    ] = None
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
    vad_min_speech_ms: int | None = None
    vad_min_silence_ms: int | None = None
    vad_pad_ms: int | None = None

    @property
    def raw(self) -> "RawPcm | None":
        """The format of a file without a header; None: the file has one.

        Raises:
            RequestError: a field is missing, or conflicts with the others.
        """
        from galley.speech.sources import raw_pcm

        return raw_pcm(self.raw_format, self.sample_rate, self.channels)

    def _speech(self) -> "SpeechOptions | None":
        """Return the options of speech detection; None if it is off.

        Raises:
            RequestError: a value is out of range, or given without ``vad``.
        """
        from galley.speech.options import SpeechOptions

        names = ("threshold", "neg_threshold", "min_speech_ms", "min_silence_ms", "pad_ms")
        given = {name: v for name in names if (v := getattr(self, f"vad_{name}")) is not None}
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
        from galley.speech.options import QualityRules, TranscribeOptions

        if self.stream and self.response_format not in ("json", "text"):
            raise RequestError(
                f"stream needs response_format json or text, not {self.response_format}",
                param="stream",
            )
        # As in OpenAI's API, 0 is raised automatically if a transcript is bad.
        rules = (
            QualityRules(temperatures=(self.temperature,)) if self.temperature else QualityRules()
        )
        return TranscribeOptions(
            task="translate",
            prompt=self.prompt,
            hotwords=self.hotwords,
            speech=self._speech(),
            rules=rules,
        )

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """The units that have timestamps in verbose_json."""
        return ("segment",)


class TranscriptionRequest(TranslationRequest, frozen=True, kw_only=True):
    """Form of ``POST /v1/audio/transcriptions``, without ``file``."""

    language: str | None = None
    chunking_strategy: Annotated[
        Literal["auto"], Meta(description="Accepted and ignored: recordings are cut at pauses.")
    ] = "auto"
    timestamp_granularities: tuple[Granularity, ...] = ()

    def options(self) -> "TranscribeOptions":
        """Return ``galley.speech``'s options; see :meth:`TranslationRequest.options`."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise RequestError(
                "timestamp_granularities needs response_format verbose_json",
                param="timestamp_granularities",
            )
        return dataclasses.replace(
            super().options(),
            task="transcribe",
            language=self.language,
            word_timestamps="word" in self.timestamp_granularities,
        )

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """The units that have timestamps; see :attr:`TranslationRequest.granularities`."""
        return self.timestamp_granularities or super().granularities
