"""Converts per-frame speech probabilities to speech segments that fit a model's chunk.

The rules are those of Silero VAD's ``get_speech_timestamps``: two thresholds, minimum lengths of speech and
silence, and padding. Only the rule for cutting a segment that is longer than a chunk is Galley's own.
"""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.options import SpeechOptions

VAD_FRAME: Final = 512
"""Samples at 16 kHz for which the detector returns one probability: 32 ms."""
SAMPLES_PER_MS: Final = 16
_MIN_PAUSE_FRAMES: Final = 3
"""A pause of fewer frames can be within a word; about the 100 ms that Silero requires."""


class SpeechSegment(NamedTuple):
    """A segment with speech, as a range of the recording's samples (16 kHz).

    Attributes:
        start, end: first sample, and the one after the last, including padding.
        overlap: number of samples at the start that the previous segment also contains.
        lead: number of samples at the start that are padding from before the speech.
        tail: number of samples at the end that are padding from after the speech.
    """

    start: int
    end: int
    overlap: int = 0
    lead: int = 0
    tail: int = 0


class VadStream(Protocol):
    """Voice activity detection over one recording or stream, e.g. ``galley.speech.vad.SileroStream``."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the speech probabilities, float32 ``[frames]``, of frames that ``samples`` completes."""
        ...

    def finish(self) -> NDArray[np.float32]:
        """Return the probability of an incomplete last frame, float32 ``[0 or 1]``."""
        ...


class AllSpeech:
    """A :class:`VadStream` that treats everything as speech."""

    def __init__(self) -> None:
        self._left = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return 1 for each frame that ``samples`` completes."""
        frames, self._left = divmod(self._left + len(samples), VAD_FRAME)
        return np.ones(frames, np.float32)

    def finish(self) -> NDArray[np.float32]:
        """Return 1 for an incomplete last frame."""
        return np.ones(min(self._left, 1), np.float32)


class SpeechSegmenter:
    """Processes probabilities frame by frame and returns each speech segment once its end is certain.

    Segments are in order and share no samples except their ``overlap``. A segment that grows beyond
    ``limit`` is cut at the longest pause in its second half. If it has no pause there, it is cut at
    ``limit``, and the next segment begins ``overlap`` samples before the cut.

    Args:
        options: rules for speech and silence.
        limit: longest segment in samples, including padding.
        overlap: overlap in samples, less than half of ``limit``.

    Raises:
        RequestError: the padding is too long for ``limit``; ``param`` names the option.
    """

    def __init__(self, options: SpeechOptions, limit: int, overlap: int) -> None:
        self._options = options
        self._pad = options.pad_ms * SAMPLES_PER_MS
        lead_ms = options.pad_ms if options.lead_ms is None else options.lead_ms
        self._lead = lead_ms * SAMPLES_PER_MS
        self._limit = limit
        self._overlap = overlap
        if limit < 4 * (max(self._pad, self._lead) + VAD_FRAME):
            name = "pad_ms" if self._pad >= self._lead else "lead_ms"
            raise RequestError(
                f"{name} may be at most {limit // 4 // SAMPLES_PER_MS - 32}, a quarter of the model's "
                f"longest input; got {max(self._pad, self._lead) // SAMPLES_PER_MS}",
                param=name,
            )
        assert 0 <= 2 * overlap < limit
        self._position = 0
        self._last_end = 0
        self._in_speech = False
        # The open segment: first sample of speech, first sample with padding, overlap with the one before.
        self._speech_start = self._start = self._shared = 0
        self._continues = False
        """Whether the open segment was split from the previous one; it is then kept at any length."""
        self._silence_start: int | None = None
        """First sample of the silence that can end the open segment."""
        self._probabilities: list[float] = []
        """The probabilities of the open segment's frames."""

    @property
    def needed_from(self) -> int:
        """The first sample that a future segment may contain; earlier audio may be dropped."""
        return self._start if self._in_speech else max(self._last_end, self._position - self._lead)

    def feed(self, probabilities: NDArray[np.float32]) -> list[SpeechSegment]:
        """Return the segments that end in the next frames; ``probabilities`` is float32 ``[frames]``."""
        found: list[SpeechSegment] = []
        for probability in probabilities.tolist():
            self._take(probability, found)
            self._position += VAD_FRAME
        return found

    def finish(self, samples: int) -> list[SpeechSegment]:
        """Return the segment, if any, still open at the end of the recording, which is ``samples`` long."""
        if not self._in_speech:
            return []
        speech_end = samples if self._silence_start is None else self._silence_start
        found: list[SpeechSegment] = []
        self._end(speech_end, min(samples, speech_end + self._pad), found)
        return found

    def _take(self, probability: float, found: list[SpeechSegment]) -> None:
        options = self._options
        if not self._in_speech:
            if probability >= options.threshold:
                self._begin()
                self._probabilities.append(probability)
            return
        if self._position + VAD_FRAME + self._pad - self._start > self._limit:
            self._cut(found)
            if not self._in_speech:
                self._take(probability, found)
                return
        self._probabilities.append(probability)
        if probability >= options.threshold:
            self._silence_start = None
        elif probability < options.silence_below:
            self._silence_start = (
                self._position if self._silence_start is None else self._silence_start
            )
            if self._position - self._silence_start >= options.min_silence_ms * SAMPLES_PER_MS:
                self._end(self._silence_start, self._silence_start + self._pad, found)

    def _begin(self) -> None:
        self._in_speech, self._continues, self._silence_start = True, False, None
        self._speech_start = self._position
        self._start = max(self._last_end, self._position - self._lead)
        self._shared = 0
        self._probabilities = []

    def _end(self, speech_end: int, end: int, found: list[SpeechSegment]) -> None:
        least = self._options.min_speech_ms * SAMPLES_PER_MS
        if self._continues or speech_end - self._speech_start > least:
            lead = max(0, self._speech_start - self._start)
            tail = max(0, end - speech_end)
            found.append(SpeechSegment(self._start, end, self._shared, lead, tail))
            self._last_end = end
        self._in_speech = False

    def _cut(self, found: list[SpeechSegment]) -> None:
        """End the open segment before the frame at ``_position``; if speech continues, begin the next."""
        if self._silence_start is not None:
            self._end(
                self._silence_start, min(self._silence_start + self._pad, self._position), found
            )
            return
        pause = self._longest_pause()
        end = self._position if pause is None else pause
        self._continues = True
        self._end(end, end, found)
        self._in_speech = True
        self._shared = self._overlap if pause is None else 0
        start = end - self._shared
        frames = -(-(self._position - start) // VAD_FRAME)
        self._start, self._probabilities = (
            start,
            self._probabilities[len(self._probabilities) - frames :],
        )

    def _longest_pause(self) -> int | None:
        """Return the middle sample of the latest longest pause in the open segment's second half."""
        first_sample = self._position - len(self._probabilities) * VAD_FRAME
        first = len(self._probabilities) // 2
        middle = longest_pause(self._probabilities[first:], self._options.silence_below)
        return None if middle is None else first_sample + first * VAD_FRAME + middle


def longest_pause(probabilities: Sequence[float], silence_below: float) -> int | None:
    """Return the middle of the longest pause between words, the latest of equals; None without a pause.

    Args:
        probabilities: probabilities of consecutive frames.
        silence_below: a frame with a lower probability is silence.

    Returns:
        The position in samples from the start of the first frame.
    """
    first, longest, middle = 0, _MIN_PAUSE_FRAMES, None
    for quiet, run in itertools.groupby(p < silence_below for p in probabilities):
        length = len(list(run))
        if quiet and length >= longest:
            longest, middle = length, first * VAD_FRAME + length * VAD_FRAME // 2
        first += length
    return middle
