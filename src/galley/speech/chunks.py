"""Chunks of a recording: speech segments packed to a model's encoder input length, without silence.

Each chunk is one run of the encoder. For a model whose inputs are padded to one length (Whisper's 30 s),
segments are packed into a chunk until it is full, so that few chunks are needed; times in a chunk are
mapped back to the recording. For a model that accepts inputs of any length, each segment is a separate
chunk.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.speech.audio_buffer import AudioBuffer
from galley.speech.features import SAMPLE_RATE
from galley.speech.options import SpeechOptions
from galley.speech.segmenter import VAD_FRAME, SpeechSegment, SpeechSegmenter, VadStream

_OVERLAP_SECONDS: Final = 3.0
"""Overlap of chunks that are cut without a pause: a few words, so that transcripts can be joined."""
_LEAST_LEFT: Final = 0.6 * SAMPLE_RATE
"""Samples of speech that may follow a segment's last timestamp, which is rarely exact."""
_LEAST_DONE: Final = 0.25 * SAMPLE_RATE
"""Samples of speech before the last timestamp that are too few for a whole word."""
_ONSET: Final = 2 * VAD_FRAME
"""Samples by which the detector is typically late at the start of speech."""


@dataclass(frozen=True)
class AudioChunk:
    """The audio of one or several speech segments, joined.

    Attributes:
        segments: the parts of the recording that the chunk contains, in order. Only the first may overlap
            another chunk.
        samples: the segments' samples, joined: mono float32 ``[samples]`` at 16 kHz.
    """

    segments: tuple[SpeechSegment, ...]
    samples: NDArray[np.float32]

    @property
    def seconds(self) -> float:
        """Length of the chunk's audio, in seconds."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def overlap(self) -> float:
        """Seconds at the chunk's start that the previous chunk also contains."""
        return self.segments[0].overlap / SAMPLE_RATE

    def recording_time(self, seconds: float, *, end: bool = False) -> float:
        """Return the time in the recording, in seconds, of a time in the chunk.

        Where two segments meet, it is the start of the later one or, with ``end``, the end of the earlier
        one.
        """
        sample = seconds * SAMPLE_RATE
        offset = 0
        for segment in self.segments:
            length = segment.end - segment.start
            if sample < offset + length or (end and sample == offset + length):
                return (segment.start + sample - offset) / SAMPLE_RATE
            offset += length
        return self.segments[-1].end / SAMPLE_RATE

    def recording_times(self, start: float, end: float) -> tuple[float, float]:
        """Return the times in the recording, in seconds, of a word from ``start`` to ``end`` in the chunk.

        The whole word is placed in the speech segment that contains its middle: no word lies in the omitted
        silence between segments, or in the padding before speech.
        """
        middle = (start + end) / 2 * SAMPLE_RATE
        offset = 0
        for segment in self.segments:
            length = segment.end - segment.start
            if middle < offset + length or segment is self.segments[-1]:
                break
            offset += length

        first = max(0, segment.lead - _ONSET)

        def place(seconds: float) -> float:
            sample = min(max(first, seconds * SAMPLE_RATE - offset), length)
            return (segment.start + sample) / SAMPLE_RATE

        return place(start), place(end)

    def untranscribed_from(self, seconds: float) -> float | None:
        """Return where the chunk's speech continues after a time in it; None if too little speech follows.

        Args:
            seconds: end of the transcribed audio, in seconds of the chunk.
        """
        transcribed, offset = seconds * SAMPLE_RATE, 0
        for segment in self.segments:
            begin, end = offset + segment.lead, offset + segment.end - segment.start
            left = end - segment.tail - max(transcribed, begin)
            if left >= _LEAST_LEFT or (transcribed <= begin and left > 0):
                return (transcribed if transcribed >= begin + _LEAST_DONE else offset) / SAMPLE_RATE
            offset = end
        return None


class Chunker:
    """Creates chunks of a recording that arrives in blocks. Buffers at most about one chunk of audio.

    Args:
        limit_seconds: longest chunk, in seconds.
        options: rules for finding speech.
        pack: fill each chunk with as many speech segments as fit; False: one segment per chunk.
    """

    def __init__(self, limit_seconds: float, options: SpeechOptions, *, pack: bool = True) -> None:
        self._packs = pack
        self._limit = int(limit_seconds * SAMPLE_RATE)
        overlap = int(min(_OVERLAP_SECONDS, limit_seconds / 6) * SAMPLE_RATE)
        self._segmenter = SpeechSegmenter(options, self._limit, overlap)
        self._audio = AudioBuffer()
        # The chunk being packed: its segments, and the samples of each.
        self._segments: list[SpeechSegment] = []
        self._samples: list[NDArray[np.float32]] = []

    def feed(
        self, samples: NDArray[np.float32], probabilities: NDArray[np.float32]
    ) -> Iterator[AudioChunk]:
        """Yield the chunks that the next samples complete.

        Args:
            samples: the next block of the recording.
            probabilities: float32 ``[frames]`` of the detector's frames that the block completes.
        """
        self._audio.append(samples)
        yield from self._pack(self._segmenter.feed(probabilities))
        self._audio.drop_before(self._segmenter.needed_from)

    def finish(self, probabilities: NDArray[np.float32]) -> Iterator[AudioChunk]:
        """Yield the last chunks; ``probabilities`` is that of an incomplete last frame, if there is one."""
        end = self._audio.end
        segments = self._segmenter.feed(probabilities) + self._segmenter.finish(end)
        yield from self._pack(segment._replace(end=min(segment.end, end)) for segment in segments)
        yield from self._flush()

    def _pack(self, segments: Iterable[SpeechSegment]) -> Iterator[AudioChunk]:
        for segment in segments:
            length = sum(map(len, self._samples)) + segment.end - segment.start
            if segment.overlap or length > self._limit or not self._packs:
                yield from self._flush()
            self._segments.append(segment)
            self._samples.append(self._audio.read(segment.start, segment.end))

    def _flush(self) -> Iterator[AudioChunk]:
        if self._segments:
            yield AudioChunk(tuple(self._segments), np.concatenate(self._samples))
        self._segments, self._samples = [], []


def chunk_audio(
    blocks: Iterable[NDArray[np.float32]],
    limit_seconds: float,
    options: SpeechOptions,
    detector: VadStream,
    *,
    pack: bool = True,
) -> Iterator[AudioChunk]:
    """Yield the chunks of a recording, each as soon as the recording's blocks complete it.

    Args:
        blocks: mono float32 blocks at 16 kHz, of any size.
        limit_seconds: longest chunk, in seconds.
        options: rules for finding speech.
        detector: detector used by this recording alone, as it has state.
        pack: see :class:`Chunker`.
    """
    chunker = Chunker(limit_seconds, options, pack=pack)
    for block in blocks:
        yield from chunker.feed(block, detector.feed(block))
    yield from chunker.finish(detector.finish())
