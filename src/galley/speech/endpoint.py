"""Endpointing of a live stream: finds speech starts and ends in the detector's frame probabilities."""

from typing import Final, NamedTuple, TypeAlias

from galley.speech.options import TurnOptions
from galley.speech.segmenter import SAMPLES_PER_MS, VAD_FRAME

_MIN_SPEECH: Final = 50 * SAMPLES_PER_MS
"""Speech that has not lasted longer, in samples, is a click; each frame more delays an interruption."""


class Onset(NamedTuple):
    """Speech has started; ``at`` is the first sample to transcribe, including padding."""

    at: int


class Endpoint(NamedTuple):
    """Speech has ended: silence since sample ``at`` has lasted for ``silence_duration_ms``."""

    at: int


Boundary: TypeAlias = Onset | Endpoint


class Endpointer:
    """Finds onsets and endpoints, one frame after another. Positions are samples of the stream.

    Attributes:
        options: may be replaced between two frames.
        position: end of the last processed frame.
        silence_start: start of the silence that may become an endpoint; None without speech and during
            speech.
        enough_ms: length of the current silence that is an endpoint; None: as the options say.
    """

    def __init__(self, options: TurnOptions) -> None:
        self.options = options
        self.position = 0
        self.silence_start: int | None = None
        self.enough_ms: int | None = None
        self._speech_start: int | None = None
        self._announced = False
        """Whether the onset of the current speech was returned."""
        self._last_end = 0

    @property
    def needed_from(self) -> int:
        """The earliest position that a future onset may have; earlier audio may be dropped."""
        start = self._speech_start
        known = self.position if start is None or self._announced else start
        return max(self._last_end, known - self.options.prefix_padding_ms * SAMPLES_PER_MS)

    def feed(self, probability: float) -> Boundary | None:
        """Process the next frame's speech probability; return the boundary that becomes certain, if any."""
        if self._speech_start is None:
            if probability >= self.options.threshold:
                self._speech_start = self.position
        elif probability >= self.options.threshold:
            self.silence_start = self.enough_ms = None
        elif probability < self.options.silence_below and self.silence_start is None:
            self.silence_start = self.position
        self.position += VAD_FRAME
        return self.boundary()

    def reset(self, at: int) -> None:
        """End the current speech, if any, at sample ``at`` without an endpoint; onsets lie after it."""
        self._speech_start = self.silence_start = self.enough_ms = None
        self._announced = False
        self._last_end = at

    def boundary(self) -> Boundary | None:
        """Return the boundary that is certain at the current position, if any; it is returned once."""
        if self._speech_start is None:
            return None
        if self.silence_start is None:
            if self._announced or self.position - self._speech_start <= _MIN_SPEECH:
                return None
            onset = Onset(self.needed_from)
            self._announced = True
            return onset
        silence = self.position - self.silence_start
        options = self.options
        enough = options.silence_duration_ms if self.enough_ms is None else self.enough_ms
        if silence < enough * SAMPLES_PER_MS:
            return None
        endpoint = Endpoint(self.silence_start) if self._announced else None
        self.reset(self.position if self._announced else self._last_end)
        return endpoint
