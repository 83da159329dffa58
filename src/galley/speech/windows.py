"""Windows: speech packed into pieces of at most a model's length, with the silence between left out.

Each window is one run of the encoder. A model whose windows are padded to one length wants few of them:
spans of speech go into one until it is full, and times in a window lead back to the recording. A model
that takes windows of any length gets each span by itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from galley.speech.features import SAMPLE_RATE
from galley.speech.options import SpeechOptions
from galley.speech.spans import FRAME, Span, SpanFinder
from galley.speech.tape import Tape

_OVERLAP_SECONDS: Final = 3.0
"""Of windows that no pause parts: some words, so that the two transcripts can be joined at one."""


_ONSET: Final = 2 * FRAME
"""Speech begins about so many samples before the detector is sure of it."""


class Probabilities(Protocol):
    """What :class:`galley.speech.vad.SpeechStream` gives for each frame of one recording."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the frames that ``samples`` complete."""
        ...

    def finish(self) -> NDArray[np.float32]:
        """Of the last frame, if it is not whole."""
        ...


class AllSpeech:
    """Instead of a detector: everything is speech."""

    def __init__(self) -> None:
        self._left = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """One for each frame that ``samples`` complete."""
        frames, self._left = divmod(self._left + len(samples), FRAME)
        return np.ones(frames, np.float32)

    def finish(self) -> NDArray[np.float32]:
        """One for the last frame, if it is not whole."""
        return np.ones(min(self._left, 1), np.float32)


@dataclass(frozen=True)
class Window:
    """Some spans of a recording, one after another.

    Attributes:
        spans: what of the recording it holds, in order.
        samples: mono float32, 16 kHz: the spans' samples joined.
    """

    spans: tuple[Span, ...]
    samples: NDArray[np.float32]

    @property
    def seconds(self) -> float:
        """Of sound."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def overlap(self) -> float:
        """Seconds at its start that the window before holds, too."""
        return self.spans[0].overlap / SAMPLE_RATE

    def recording_time(self, seconds: float, *, end: bool = False) -> float:
        """Where in the recording a time in the window is, in seconds.

        Where two spans meet it is the beginning of the later one, or the ``end`` of the earlier one.
        """
        sample = seconds * SAMPLE_RATE
        offset = 0
        for span in self.spans:
            length = span.end - span.start
            if sample < offset + length or (end and sample == offset + length):
                return (span.start + sample - offset) / SAMPLE_RATE
            offset += length
        return self.spans[-1].end / SAMPLE_RATE

    def recording_times(self, start: float, end: float) -> tuple[float, float]:
        """Where in the recording something is that lies from ``start`` to ``end`` in the window.

        It is all in one span, the one that its middle is in, as a word is: a silence that was left out
        between spans is in none. Nor is a word in what is kept from before speech.
        """
        middle = (start + end) / 2 * SAMPLE_RATE
        offset = 0
        for span in self.spans:
            length = span.end - span.start
            if middle < offset + length or span is self.spans[-1]:
                break
            offset += length

        first = max(0, span.lead - _ONSET)

        def place(seconds: float) -> float:
            sample = min(max(first, seconds * SAMPLE_RATE - offset), length)
            return (span.start + sample) / SAMPLE_RATE

        return place(start), place(end)


class Windower:
    """Makes windows of a recording that comes in blocks. Keeps no more of it than a window.

    Args:
        limit_seconds: how long a window may be.
        options: what counts as speech.
        pack: fill each window with as many spans as it holds.
    """

    def __init__(self, limit_seconds: float, options: SpeechOptions, *, pack: bool = True) -> None:
        self._packs = pack
        self._limit = int(limit_seconds * SAMPLE_RATE)
        overlap = int(min(_OVERLAP_SECONDS, limit_seconds / 6) * SAMPLE_RATE)
        self._finder = SpanFinder(options, self._limit, overlap)
        self._tape = Tape()
        self._spans: list[Span] = []
        self._pieces: list[NDArray[np.float32]] = []

    def feed(
        self, samples: NDArray[np.float32], probabilities: NDArray[np.float32]
    ) -> Iterator[Window]:
        """The windows that are complete; ``probabilities`` are those of all whole frames so far."""
        self._tape.append(samples)
        yield from self._pack(self._finder.feed(probabilities))
        self._tape.forget(self._finder.needed_from)

    def finish(self, probabilities: NDArray[np.float32]) -> Iterator[Window]:
        """The rest, with the probability of a last frame that is not whole."""
        spans = self._finder.feed(probabilities) + self._finder.finish(self._tape.end)
        yield from self._pack([span._replace(end=min(span.end, self._tape.end)) for span in spans])
        yield from self._flush()

    def _pack(self, spans: Iterable[Span]) -> Iterator[Window]:
        for span in spans:
            length = sum(map(len, self._pieces)) + span.end - span.start
            if span.overlap or length > self._limit or not self._packs:
                yield from self._flush()
            self._spans.append(span)
            self._pieces.append(self._tape.cut(span.start, span.end))

    def _flush(self) -> Iterator[Window]:
        if self._spans:
            yield Window(tuple(self._spans), np.concatenate(self._pieces))
        self._spans, self._pieces = [], []


def windows(
    blocks: Iterable[NDArray[np.float32]],
    limit_seconds: float,
    options: SpeechOptions,
    detector: Probabilities,
    *,
    pack: bool = True,
) -> Iterator[Window]:
    """The windows of a recording, as its blocks (mono float32, 16 kHz) come in.

    Args:
        blocks: of any size.
        limit_seconds: how long a window may be.
        options: what counts as speech.
        detector: a new stream of one.
        pack: as :class:`Windower` takes it.
    """
    windower = Windower(limit_seconds, options, pack=pack)
    for block in blocks:
        yield from windower.feed(block, detector.feed(block))
    yield from windower.finish(detector.finish())
