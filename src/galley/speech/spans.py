"""From probabilities to spans of speech, none longer than a model's window.

The rule is Silero's (``get_speech_timestamps``): two thresholds, a least length of speech and of silence,
padding. What is added is where a span is cut that does not fit a window.
"""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from galley.speech.options import SpeechOptions

FRAME: Final = 512
"""Samples that get one probability, at 16 kHz."""
SAMPLES_PER_MS: Final = 16
_MIN_PAUSE_FRAMES: Final = 3
"""Of a pause that a word may be trusted to end at: about the 100 ms that Silero asks for."""


class Span(NamedTuple):
    """Speech, in samples of the recording.

    The first ``overlap`` of them are the last span's, too; the first ``lead`` are from before it began.
    """

    start: int
    end: int
    overlap: int = 0
    lead: int = 0


class SpanFinder:
    """Takes probabilities frame by frame and gives spans as soon as they are certain.

    Spans are in order and do not touch each other's samples, but for an overlap that they name. A span that
    grows beyond ``limit`` is cut at the longest pause of its latter half. Where there is none it is cut at
    ``limit``, and the next span begins ``overlap`` samples earlier.

    Args:
        options: what counts as speech and as silence.
        limit: samples that a span may have, padding included.
        overlap: samples, less than half of ``limit``.
    """

    def __init__(self, options: SpeechOptions, limit: int, overlap: int) -> None:
        self._options = options
        self._pad = options.pad_ms * SAMPLES_PER_MS
        self._limit = limit
        self._overlap = overlap
        if limit < 4 * (self._pad + FRAME) or not 0 <= 2 * overlap < limit:
            raise ValueError(
                f"limit {limit} is too short for padding {self._pad} and overlap {overlap}"
            )
        self._position = 0
        self._last_end = 0
        self._in_speech = False
        self._speech = self._start = self._shared = 0
        """Of the open span: its first speech, its first sample, its overlap."""
        self._continues = False
        """The open span was cut off the one before, so it is speech however short it is."""
        self._silence: int | None = None
        """Where the silence began that may end the open span."""
        self._heard: list[float] = []
        """Probabilities of the open span's frames."""

    @property
    def needed_from(self) -> int:
        """The first sample that a later span may still have."""
        return self._start if self._in_speech else max(self._last_end, self._position - self._pad)

    def feed(self, probabilities: NDArray[np.float32]) -> list[Span]:
        """The spans that these frames end."""
        found: list[Span] = []
        for probability in probabilities.tolist():
            self._take(probability, found)
            self._position += FRAME
        return found

    def finish(self, samples: int) -> list[Span]:
        """The span that the end of the recording ends; ``samples`` is how long the recording is."""
        if not self._in_speech:
            return []
        speech_end = samples if self._silence is None else self._silence
        found: list[Span] = []
        self._end(speech_end, min(samples, speech_end + self._pad), found)
        return found

    def _take(self, probability: float, found: list[Span]) -> None:
        options = self._options
        if not self._in_speech:
            if probability >= options.threshold:
                self._begin()
                self._heard.append(probability)
            return
        if self._position + FRAME + self._pad - self._start > self._limit:
            self._cut(found)
            if not self._in_speech:
                self._take(probability, found)
                return
        self._heard.append(probability)
        if probability >= options.threshold:
            self._silence = None
        elif probability < options.silence_below:
            self._silence = self._position if self._silence is None else self._silence
            if self._position - self._silence >= options.min_silence_ms * SAMPLES_PER_MS:
                self._end(self._silence, self._silence + self._pad, found)

    def _begin(self) -> None:
        self._in_speech, self._continues, self._silence = True, False, None
        self._speech = self._position
        self._start = max(self._last_end, self._position - self._pad)
        self._shared = 0
        self._heard = []

    def _end(self, speech_end: int, end: int, found: list[Span]) -> None:
        least = self._options.min_speech_ms * SAMPLES_PER_MS
        if self._continues or speech_end - self._speech > least:
            lead = max(0, self._speech - self._start)
            found.append(Span(self._start, end, self._shared, lead))
            self._last_end = end
        self._in_speech = False

    def _cut(self, found: list[Span]) -> None:
        """Ends the open span before the frame at ``_position``; if it is speech still, begins the next."""
        if self._silence is not None:
            self._end(self._silence, min(self._silence + self._pad, self._position), found)
            return
        pause = self._longest_pause()
        end = self._position if pause is None else pause
        self._continues = True
        self._end(end, end, found)
        self._in_speech = True
        self._shared = self._overlap if pause is None else 0
        start = end - self._shared
        frames = -(-(self._position - start) // FRAME)
        self._start, self._heard = start, self._heard[len(self._heard) - frames :]

    def _longest_pause(self) -> int | None:
        """The middle of the longest (then latest) pause in the latter half of the open span, if any."""
        heard_from = self._position - len(self._heard) * FRAME
        first = len(self._heard) // 2
        middle = longest_pause(self._heard[first:], self._options.silence_below)
        return None if middle is None else heard_from + first * FRAME + middle


def longest_pause(probabilities: Sequence[float], silence_below: float) -> int | None:
    """The middle, in samples, of the longest (then latest) pause between words; None if there is none.

    Args:
        probabilities: of frames, one after another.
        silence_below: what a frame of a pause has.
    """
    first, longest, middle = 0, _MIN_PAUSE_FRAMES, None
    for quiet, run in itertools.groupby(p < silence_below for p in probabilities):
        length = len(list(run))
        if quiet and length >= longest:
            longest, middle = length, first * FRAME + length * FRAME // 2
        first += length
    return middle
