"""Transcriptions and translations: transcripts of recordings, whole and as events."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TypeAlias

from galley.errors import ModelError
from galley.gateway.call import Call
from galley.gateway.recordings import StoredRecording
from galley.protocols.common.errors import ApiError
from galley.protocols.openai.audio.schemas import TranslationRequest
from galley.protocols.openai.audio.sources import Channel, Run, Stored, TranscriptSource
from galley.protocols.openai.usage import AudioUsage, audio_usage
from galley.settings.config import Settings

if TYPE_CHECKING:
    from galley.speech.decoder import DecodedRecording
    from galley.speech.diarize.diarizer import Diarizer
    from galley.speech.results import Info, Segment
    from galley.speech.session import Session

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
ENDPOINTS: Final = {"transcribe": TRANSCRIPTIONS, "translate": TRANSLATIONS}
"""Task -> path of its route."""

Event: TypeAlias = Mapping[str, Any]
_CHUNKS_IN_FLIGHT: Final = 8
"""Maximum chunks of one recording in the engine, which all requests share."""


class Transcript:
    """The transcript of one recording; read it once, either whole or as events."""

    def __init__(self, call: Call, source: TranscriptSource) -> None:
        """Create the transcript; :meth:`begin` and :meth:`again` call this."""
        self._call = call
        self._source = source

    @classmethod
    def again(cls, call: Call, stored: bytes) -> Self:
        """Return a stored transcript. Raises msgspec.MsgspecError if it is of another version."""
        return cls(call, Stored(stored))

    @classmethod
    def begin(
        cls,
        call: Call,
        form: TranslationRequest,
        file: BinaryIO,
        name: str,
        place: StoredRecording,
    ) -> Self:
        """Open the recording and check that it can be transcribed. Takes a while.

        Args:
            call: closed with the transcript; if this method raises, the caller closes it.
            form: the request.
            file: the recording; the caller closes it, after the transcript.
            name: the file's name, for errors.
            place: where the transcript is stored once it is complete.

        Raises:
            ModelError, AudioError, RequestError: the recording or request does not suit the model.
        """
        from galley.speech.diarize.job import DiarizationJob
        from galley.speech.session import Session

        options, raw = form.options(), form.raw
        model = call.backend.speech_model
        decoder = call.backend.decoder
        assert decoder is not None  # it is a speech model
        settings = call.served.settings
        redact = form.kinds(settings.redact)
        most = settings.max_audio_seconds

        def session(number: int) -> "Session":
            return Session(
                model.tokens,
                options,
                f"{call.caller.request_id}-{number}" if number > 1 else call.caller.request_id,
                max_chunks=_CHUNKS_IN_FLIGHT,
                pads=model.pads,
                cache_salt=call.caller.cache_salt(),
            )

        def opened(number: int | None) -> "DecodedRecording":
            return decoder.open(
                file, raw=raw, name=name, max_seconds=most, track=form.track, channel=number
            )

        def channel(number: int) -> Channel:
            return Channel(session(number), model.chunks(opened(number), options), number)

        checked = session(1)  # before the recording is opened
        speakers = form.diarization()
        if not form.multichannel:
            job = None
            if speakers is not None:
                job = DiarizationJob(
                    _diarizer(settings),
                    speakers,
                    partial(opened, form.channel),
                    partial(decoder.open, name="known_speaker_references"),
                )
            whole = Channel(checked, model.chunks(opened(form.channel), options), speakers=job)
            return cls(call, Run(call, redact, place, whole))
        recording = opened(1)
        first = Channel(checked, model.chunks(recording, options), 1)
        others = [partial(channel, number) for number in range(2, recording.channels + 1)]
        return cls(call, Run(call, redact, place, first, others))

    async def page(self, form: TranslationRequest) -> bytes:
        """Return the whole transcript in the requested format."""
        from galley.speech import captions
        from galley.speech.diarize.speakers import by_channel

        segments = [segment async for segment in self._segments()]
        if form.multichannel:
            segments = captions.in_order(segments)
            if form.diarizes:
                segments = by_channel(segments)
        if form.max_line_width is not None:
            segments = list(captions.lines_of(segments, form.max_line_width))
        match form.response_format:
            case "json":
                return captions.as_json(segments, self._usage(), self._info().warnings)
            case "text":
                return (captions.text_of(segments) + "\n").encode()
            case "srt":
                return "".join(captions.as_srt(segments)).encode()
            case "vtt":
                return "".join(captions.as_vtt(segments)).encode()
            case "verbose_json":
                return captions.as_verbose_json(
                    segments, self._info(), form.granularities, self._usage()
                )
            case "diarized_json":
                return captions.as_diarized_json(segments, self._info(), self._usage())

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield OpenAI's events: each segment's text when final, and the whole text at the end.

        Segments with a speaker are events of their own, too.
        """
        from galley.speech.captions import diarized, text_of

        segments: list[Segment] = []
        async with aclosing(self._segments()) as found:
            async for segment in found:
                delta = segment.text if segments else segment.text.lstrip()
                segments.append(segment)
                event = {"type": "transcript.text.delta", "delta": delta}
                if segment.speaker is None:
                    yield event
                else:
                    whole = diarized(segment)
                    yield {**event, "segment_id": whole["id"]}
                    yield whole
        done = {"type": "transcript.text.done", "text": text_of(segments)}
        warnings = self._info().warnings
        yield {**done, **({"warnings": warnings} if warnings else {}), "usage": self._usage()}

    def close(self) -> None:
        """Close the recording, and cancel any work still running. Idempotent."""
        self._call.close()
        self._source.close()

    def _usage(self) -> AudioUsage:
        return audio_usage(self._source.seconds, self._call.receipt)

    def _info(self) -> "Info":
        return self._source.info()

    async def _segments(self) -> "AsyncGenerator[Segment, None]":
        reason = "cancelled"
        try:
            segments = self._source.segments()
            async with aclosing(segments):
                async for segment in segments:
                    yield segment
            reason = "stop"
            self._call.recording_done(self._source.seconds)
        except Exception:
            reason = "error"
            raise
        finally:
            self._call.close()
            self._call.audio_ended(self._source.seconds, reason, **self._source.facts())


def _diarizer(settings: Settings) -> "Diarizer":
    """Return the diarizer with the server's networks; raise ApiError 501 if they cannot be loaded."""
    from galley.speech.diarize.diarizer import load
    from galley.speech.diarize.options import NetFiles

    folder, encoder = (
        Path(name) if name else None for name in (settings.speaker_models, settings.speaker_encoder)
    )
    try:
        return load(NetFiles(folder, encoder, settings.speaker_distance or None))
    except ModelError as error:
        raise ApiError(
            501, str(error), type="internal_error", code="diarization_not_installed"
        ) from error
