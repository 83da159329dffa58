"""Transcriptions and translations: transcripts of recordings, whole and as events."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TypeAlias

import msgspec

from galley.gateway.call import Call
from galley.protocols.openai.audio.schemas import TranslationRequest
from galley.protocols.openai.usage import AudioUsage, audio_usage
from galley.redact import Kind

if TYPE_CHECKING:
    from galley.speech.chunk_source import ChunkSource
    from galley.speech.decoder import DecodedRecording
    from galley.speech.redaction import Redactor
    from galley.speech.results import Info, Segment
    from galley.speech.session import Session

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
ENDPOINTS: Final = {"transcribe": TRANSCRIPTIONS, "translate": TRANSLATIONS}
"""Task -> path of its route."""

Event: TypeAlias = Mapping[str, Any]
_CHUNKS_IN_FLIGHT: Final = 8
"""Maximum chunks of one recording in the engine, which all requests share."""


@dataclass
class _Part:
    """One channel of a recording in progress, or all of its channels mixed.

    Attributes:
        channel: the channel, counted from 1; None if it is not transcribed on its own.
    """

    session: "Session"
    chunks: "ChunkSource"
    channel: int | None = None


class Transcript:
    """The transcript of one recording in progress; read it once, either whole or as events."""

    def __init__(
        self,
        call: Call,
        redact: Collection[Kind],
        first: _Part,
        others: Sequence[Callable[[], _Part]] = (),
    ) -> None:
        """Create the transcript; :meth:`begin` calls this.

        Args:
            call: closed with the transcript.
            redact: kinds of personal data to remove, in each channel.
            first: the recording, or its first channel.
            others: open the other channels, one after another.
        """
        self._call = call
        self._redact = redact
        self._parts = [first]
        self._others = others
        self._redactors: list[Redactor] = []

    @classmethod
    def begin(
        cls,
        call: Call,
        asked: TranslationRequest,
        file: BinaryIO,
        name: str,
    ) -> Self:
        """Open the recording and check that it can be transcribed. Takes a while.

        Args:
            call: closed with the transcript; if this method raises, the caller closes it.
            asked: the request.
            file: the recording; the caller closes it, after the transcript.
            name: the file's name, for errors.

        Raises:
            ModelError, AudioError, RequestError: the recording or request does not suit the model.
        """
        from galley.speech.redaction import check_kinds
        from galley.speech.session import Session

        options, raw = asked.options(), asked.raw
        model = call.served.speech_model(call.backend)
        decoder = call.backend.decoder
        assert decoder is not None  # it is a speech model
        settings = call.served.settings
        redact = check_kinds((*settings.redact, *asked.redact))
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

        def opened(channel: int | None) -> "DecodedRecording":
            return decoder.open(
                file, raw=raw, name=name, max_seconds=most, track=asked.track, channel=channel
            )

        def part(number: int) -> _Part:
            return _Part(session(number), model.chunks(opened(number), options), number)

        checked = session(1)  # before the recording is opened
        if not asked.multichannel:
            return cls(call, redact, _Part(checked, model.chunks(opened(asked.channel), options)))
        recording = opened(1)
        first = _Part(checked, model.chunks(recording, options), 1)
        others = [partial(part, number) for number in range(2, recording.channels + 1)]
        return cls(call, redact, first, others)

    async def page(self, asked: TranslationRequest) -> bytes:
        """Return the whole transcript in the requested format."""
        from galley.speech import captions

        segments = [segment async for segment in self._segments()]
        if self._others:
            segments = captions.in_order(segments)
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
        for part in self._parts:
            part.chunks.close()

    @property
    def _seconds(self) -> float:
        """Seconds of audio transcribed; each channel counts."""
        return sum(part.chunks.info(part.session).duration for part in self._parts)

    def _usage(self) -> AudioUsage:
        return audio_usage(self._seconds, self._call.receipt)

    def _info(self) -> "Info":
        infos = [part.chunks.info(part.session) for part in self._parts]
        if len(infos) == 1:
            return infos[0]
        warnings = (
            f"channel {number}: {warning}"
            for number, info in enumerate(infos, 1)
            for warning in info.warnings
        )
        return msgspec.structs.replace(infos[0], warnings=tuple(warnings))

    async def _segments(self) -> "AsyncGenerator[Segment, None]":
        reason = "cancelled"
        try:
            async with aclosing(self._of(self._parts[0])) as segments:
                async for segment in segments:
                    yield segment
            for opened in self._others:
                self._parts.append(await asyncio.to_thread(opened))
                async with aclosing(self._of(self._parts[-1])) as segments:
                    async for segment in segments:
                        yield segment
            reason = "stop"
            self._call.recording_done(self._seconds)
        except Exception:
            reason = "error"
            raise
        finally:
            self._call.close()
            self._call.audio_ended(self._seconds, reason, **self._redacted())

    async def _of(self, part: _Part) -> "AsyncGenerator[Segment, None]":
        """Yield the segments of one part."""
        from galley.speech.async_transcribe import transcribe_async
        from galley.speech.redaction import Redactor, redact_stream

        patient = part is not self._parts[0]
        segments = transcribe_async(self._call, part.session, part.chunks, patient=patient)
        if self._redact:
            redactor = Redactor(self._redact)
            self._redactors.append(redactor)
            segments = redact_stream(segments, redactor)
        async with aclosing(segments):
            async for segment in segments:
                yield msgspec.structs.replace(segment, channel=part.channel)

    def _redacted(self) -> dict[str, Any]:
        """Return what the audit log says about redaction: the kinds, and how many spans of each."""
        if not self._redact:
            return {}
        spans = (passage for redactor in self._redactors for passage in redactor.passages)
        counts = Counter(passage.kind for passage in spans)
        return {"redact": ",".join(self._redact), "redacted": dict(counts)}
