"""Transcriptions and translations: transcripts of recordings, whole and as events."""

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, Self, TypeAlias

import msgspec

from galley.gateway.call import Call
from galley.gateway.recordings import StoredRecording
from galley.protocols.openai.audio.schemas import TranslationRequest
from galley.protocols.openai.usage import AudioUsage, audio_usage
from galley.redact import Kind

if TYPE_CHECKING:
    from galley.speech.chunk_source import ChunkSource
    from galley.speech.results import Info, Segment
    from galley.speech.session import Session

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
ENDPOINTS: Final = {"transcribe": TRANSCRIPTIONS, "translate": TRANSLATIONS}
"""Task -> path of its route."""

Event: TypeAlias = Mapping[str, Any]
_CHUNKS_IN_FLIGHT: Final = 8
"""Maximum chunks of one recording in the engine, which all requests share."""


class Source(Protocol):
    """Where a transcript comes from."""

    def segments(self) -> "AsyncGenerator[Segment, None]":
        """Yield the segments in order."""

    def info(self) -> "Info":
        """Return what is known about the recording so far."""

    def close(self) -> None:
        """Let go of the recording. Idempotent."""


class StoredTranscript(msgspec.Struct, frozen=True):
    """A transcript as the response cache has it: segments and :class:`Info` as plain values."""

    segments: list[dict[str, Any]]
    info: dict[str, Any]


class _Stored:
    """A stored transcript as a source."""

    def __init__(self, data: bytes) -> None:
        from galley.speech.results import Info, Segment

        stored = msgspec.msgpack.decode(data, type=StoredTranscript)
        self._segments = msgspec.convert(stored.segments, list[Segment])
        self._info = msgspec.convert(stored.info, Info)

    async def segments(self) -> "AsyncGenerator[Segment, None]":
        for segment in self._segments:
            yield segment

    def info(self) -> "Info":
        return self._info

    def close(self) -> None:
        pass


class _Run:
    """A recording that is being transcribed, as a source."""

    def __init__(
        self,
        call: Call,
        session: "Session",
        chunks: "ChunkSource",
        redact: Collection[Kind],
        place: StoredRecording,
    ) -> None:
        self._call = call
        self._redact = redact
        self._session = session
        self._chunks = chunks
        self._place = place

    async def segments(self) -> "AsyncGenerator[Segment, None]":
        from galley.speech.async_transcribe import transcribe_async
        from galley.speech.redaction import Redactor, redact_stream

        found: list[Segment] = []
        segments = transcribe_async(self._call, self._session, self._chunks)
        if self._redact:
            segments = redact_stream(segments, Redactor(self._redact))
        async with aclosing(segments):
            async for segment in segments:
                found.append(segment)
                yield segment
        info = msgspec.to_builtins(self.info())
        self._place.keep(StoredTranscript(msgspec.to_builtins(found), info))

    def info(self) -> "Info":
        return self._chunks.info(self._session)

    def close(self) -> None:
        self._chunks.close()


class Transcript:
    """The transcript of one recording; read it once, either whole or as events."""

    def __init__(self, call: Call, source: Source) -> None:
        """Create the transcript; :meth:`begin` and :meth:`again` call this."""
        self._call = call
        self._source = source

    @classmethod
    def again(cls, call: Call, stored: bytes) -> Self:
        """Return a stored transcript. Raises msgspec.MsgspecError if it is of another version."""
        return cls(call, _Stored(stored))

    @classmethod
    def begin(
        cls,
        call: Call,
        asked: TranslationRequest,
        file: BinaryIO,
        name: str,
        place: StoredRecording,
    ) -> Self:
        """Open the recording and check that it can be transcribed. Takes a while.

        Args:
            call: closed with the transcript; if this method raises, the caller closes it.
            file: the recording; the caller closes it, after the transcript.
            name: the file's name, for errors.
            place: where the transcript is stored once it is complete.

        Raises:
            ModelError, AudioError, RequestError: the recording or request does not suit the model.
        """
        from galley.speech.redaction import check_kinds
        from galley.speech.session import Session

        options, raw = asked.options(), asked.raw
        model = call.served.speech_model(call.backend)
        session = Session(
            model.tokens,
            options,
            call.caller.request_id,
            max_chunks=_CHUNKS_IN_FLIGHT,
            pads=model.pads,
            cache_salt=call.caller.cache_salt(),
        )
        settings = call.served.settings
        redact = check_kinds((*settings.redact, *asked.redact))
        most = settings.max_audio_seconds
        decoder = call.backend.decoder
        assert decoder is not None  # it is a speech model
        recording = decoder.open(file, raw=raw, name=name, max_seconds=most, track=asked.track)
        return cls(call, _Run(call, session, model.chunks(recording, options), redact, place))

    async def page(self, asked: TranslationRequest) -> bytes:
        """Return the whole transcript in the requested format."""
        from galley.speech import captions

        segments = [segment async for segment in self._segments()]
        if asked.max_line_width is not None:
            segments = list(captions.lines_of(segments, asked.max_line_width))
        match asked.response_format:
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
                    segments, self._info(), asked.granularities, self._usage()
                )

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield OpenAI's events: each segment's text when final, and the whole text at the end."""
        from galley.speech.captions import text_of

        segments: list[Segment] = []
        async with aclosing(self._segments()) as found:
            async for segment in found:
                delta = segment.text if segments else segment.text.lstrip()
                segments.append(segment)
                yield {"type": "transcript.text.delta", "delta": delta}
        done = {"type": "transcript.text.done", "text": text_of(segments)}
        warnings = self._info().warnings
        yield {**done, **({"warnings": warnings} if warnings else {}), "usage": self._usage()}

    def close(self) -> None:
        """Close the recording, and cancel any work still running. Idempotent."""
        self._call.close()
        self._source.close()

    def _usage(self) -> AudioUsage:
        return audio_usage(self._info().duration, self._call.receipt)

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
            self._call.recording_done(self._info().duration)
        except Exception:
            reason = "error"
            raise
        finally:
            self._call.close()
            self._call.audio_ended(self._info().duration, reason)
