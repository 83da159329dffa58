"""Where a live stream's speech starts and stops, frame by frame, by the detector's probabilities."""

from typing import Final, NamedTuple, TypeAlias

from galley.speech.options import TurnOptions
from galley.speech.spans import FRAME, SAMPLES_PER_MS

_MIN_SPEECH: Final = 100 * SAMPLES_PER_MS
"""Samples; what is shorter is a click."""


class Started(NamedTuple):
    """Somebody speaks, from sample ``at`` on, padding included."""

    at: int


class Stopped(NamedTuple):
    """Nobody has spoken since sample ``at``, for as long as ends a turn."""

    at: int


Change: TypeAlias = Started | Stopped


class TurnFinder:
    """Takes one probability after another. All places are samples of the stream.

    Attributes:
        options: may be replaced between two frames.
        position: what was looked at so far.
        silence: where the silence began that may end what is said; None while somebody speaks, or nobody.
    """

    def __init__(self, options: TurnOptions) -> None:
        self.options = options
        self.position = 0
        self.silence: int | None = None
        self._speech: int | None = None
        """Where it began."""
        self._announced = False
        self._last_end = 0

    @property
    def needed_from(self) -> int:
        """The first sample that a later start may name."""
        known = self.position if self._speech is None or self._announced else self._speech
        return max(self._last_end, known - self.options.prefix_padding_ms * SAMPLES_PER_MS)

    def feed(self, probability: float) -> Change | None:
        """The next frame, and what it changes."""
        if self._speech is None:
            if probability >= self.options.threshold:
                self._speech = self.position
        elif probability >= self.options.threshold:
            self.silence = None
        elif probability < self.options.silence_below and self.silence is None:
            self.silence = self.position
        self.position += FRAME
        return self._change()

    def cut(self, at: int) -> None:
        """Whatever is said ends at a sample; what is heard after it is new."""
        self._speech = self.silence = None
        self._announced = False
        self._last_end = at

    def _change(self) -> Change | None:
        if self._speech is None:
            return None
        if self.silence is None:
            if self._announced or self.position - self._speech <= _MIN_SPEECH:
                return None
            started = Started(self.needed_from)
            self._announced = True
            return started
        if self.position - self.silence < self.options.silence_duration_ms * SAMPLES_PER_MS:
            return None
        stopped = Stopped(self.silence) if self._announced else None
        self.cut(self.position if self._announced else self._last_end)
        return stopped
