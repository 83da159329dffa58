"""Where a transcript comes from: a recording that is being transcribed, or the response cache."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from galley.gateway.call import Call
from galley.gateway.recordings import StoredRecording
from galley.redact.spans import Kind

if TYPE_CHECKING:
    from galley.speech.chunk_source import ChunkSource
    from galley.speech.diarize.job import DiarizationJob
    from galley.speech.redaction import Redactor
    from galley.speech.results import Info, Segment
    from galley.speech.session import Session


class TranscriptSource(Protocol):
    """Where a transcript comes from."""

    @property
    def seconds(self) -> float:
        """Seconds of audio so far; each channel that is transcribed on its own counts."""

    def segments(self) -> "AsyncGenerator[Segment, None]":
        """Yield the segments, those of one channel after those of another."""

    def info(self) -> "Info":
        """Return what is known about the recording so far."""

    def facts(self) -> dict[str, Any]:
        """Return what the request's log record says in addition."""

    def close(self) -> None:
        """Let go of the recording. Idempotent."""


class _StoredTranscript(msgspec.Struct, frozen=True):
    """A transcript as the response cache has it: redacted, as plain values."""

    segments: list[dict[str, Any]]
    info: dict[str, Any]
    seconds: float
    facts: dict[str, Any]


class Stored:
    """A stored transcript."""

    def __init__(self, data: bytes) -> None:
        """Read a transcript. Raises msgspec.MsgspecError if it is of another version."""
        from galley.speech.results import Info, Segment

        self._stored = msgspec.msgpack.decode(data, type=_StoredTranscript)
        self._segments = msgspec.convert(self._stored.segments, list[Segment])
        self._info = msgspec.convert(self._stored.info, Info)

    @property
    def seconds(self) -> float:
        """See :class:`TranscriptSource`."""
        return self._stored.seconds

    async def segments(self) -> "AsyncGenerator[Segment, None]":
        """See :class:`TranscriptSource`."""
        for segment in self._segments:
            yield segment

    def info(self) -> "Info":
        """See :class:`TranscriptSource`."""
        return self._info

    def facts(self) -> dict[str, Any]:
        """See :class:`TranscriptSource`."""
        return self._stored.facts

    def close(self) -> None:
        """See :class:`TranscriptSource`."""


@dataclass
class Channel:
    """One channel of a recording in progress, or all of its channels mixed.

    Attributes:
        number: counted from 1; None if it is not transcribed on its own.
        speakers: finds who speaks when; None if speakers are not wanted.
    """

    session: "Session"
    chunks: "ChunkSource"
    number: int | None = None
    speakers: "DiarizationJob | None" = None


class Run:
    """A recording that is being transcribed; its transcript is stored once it is complete."""

    def __init__(
        self,
        call: Call,
        redact: Collection[Kind],
        place: StoredRecording,
        first: Channel,
        others: Sequence[Callable[[], Channel]] = (),
    ) -> None:
        """Begin with the recording, or with its first channel.

        Args:
            call: runs the sessions' requests.
            redact: kinds of personal data to remove, in each channel.
            place: where the transcript is stored.
            first: the recording, or its first channel.
            others: open the other channels, one after another.
        """
        self._call = call
        self._redact = redact
        self._place = place
        self._channels = [first]
        self._others = others
        self._redactors: list[Redactor] = []

    @property
    def seconds(self) -> float:
        """See :class:`TranscriptSource`."""
        return sum(channel.chunks.info(channel.session).duration for channel in self._channels)

    async def segments(self) -> "AsyncGenerator[Segment, None]":
        """See :class:`TranscriptSource`."""
        found: list[Segment] = []
        async with aclosing(self._all()) as segments:
            async for segment in segments:
                found.append(segment)
                yield segment
        self._place.keep(
            _StoredTranscript(
                msgspec.to_builtins(found),
                msgspec.to_builtins(self.info()),
                self.seconds,
                self.facts(),
            )
        )

    async def _all(self) -> "AsyncGenerator[Segment, None]":
        async with aclosing(self._of(self._channels[0])) as segments:
            async for segment in segments:
                yield segment
        for opened in self._others:
            self._channels.append(await asyncio.to_thread(opened))
            async with aclosing(self._of(self._channels[-1])) as segments:
                async for segment in segments:
                    yield segment

    async def _of(self, channel: Channel) -> "AsyncGenerator[Segment, None]":
        """Yield the segments of one channel."""
        from galley.speech.async_transcribe import transcribe_async
        from galley.speech.diarize.speakers import SpeakerLabels, label_stream
        from galley.speech.redaction import Redactor, redact_stream

        patient = channel is not self._channels[0]
        segments = transcribe_async(self._call, channel.session, channel.chunks, patient=patient)
        if self._redact:
            redactor = Redactor(self._redact)
            self._redactors.append(redactor)
            segments = redact_stream(segments, redactor)
        if channel.speakers is not None:
            # First, so that segments can be streamed with their speakers.
            labels = SpeakerLabels(await channel.speakers.run(), merges=True)
            segments = label_stream(segments, labels)
        async with aclosing(segments):
            async for segment in segments:
                yield msgspec.structs.replace(segment, channel=channel.number)

    def info(self) -> "Info":
        """See :class:`TranscriptSource`."""
        infos = [channel.chunks.info(channel.session) for channel in self._channels]
        if len(infos) == 1:
            return infos[0]
        warnings = (
            f"channel {number}: {warning}"
            for number, info in enumerate(infos, 1)
            for warning in info.warnings
        )
        return msgspec.structs.replace(infos[0], warnings=tuple(warnings))

    def facts(self) -> dict[str, Any]:
        """Return the kinds that are redacted, and how many spans of each were."""
        if not self._redact:
            return {}
        spans = (passage for redactor in self._redactors for passage in redactor.passages)
        counts = Counter(passage.kind for passage in spans)
        return {"redact": ",".join(self._redact), "redacted": dict(counts)}

    def close(self) -> None:
        """See :class:`TranscriptSource`."""
        for channel in self._channels:
            if channel.speakers is not None:
                channel.speakers.close()
            channel.chunks.close()
