"""A turn of a live stream that goes on after a long silence: what follows is an utterance of its own."""

from typing import Final

from galley.speech.endpoint import Endpointer
from galley.speech.segmenter import SAMPLES_PER_MS, VAD_FRAME
from galley.speech.utterance import Utterance

DIVIDES: Final = 500 * SAMPLES_PER_MS
"""Silence in samples that divides a turn.

Of audio with a long silence within it, a model may transcribe only what comes before.
"""
_RESUMES: Final = 2 * VAD_FRAME
"""Speech after it, in samples, that is more than a click."""


class DividedTurn:
    """A turn whose last utterance a silence has ended.

    Attributes:
        before: that utterance.
    """

    def __init__(self, before: Utterance) -> None:
        self.before = before
        self._resumed_at = 0

    def resumes(self, endpointer: Endpointer) -> bool:
        """Return whether the turn goes on; called once for each frame of the detector."""
        if endpointer.silence_start is not None:
            self._resumed_at = 0
            return False
        self._resumed_at = self._resumed_at or endpointer.position - VAD_FRAME
        return endpointer.position - self._resumed_at >= _RESUMES

    def start(self, endpointer: Endpointer) -> int:
        """Return where the next utterance begins if speech has begun, or does now."""
        padding = endpointer.options.prefix_padding_ms * SAMPLES_PER_MS
        return max(self.before.end or 0, (self._resumed_at or endpointer.position) - padding)

    def next_utterance(self, endpointer: Endpointer) -> Utterance:
        """Return the utterance that has begun."""
        turn, settle = self.before.turn, self.before.settle
        return Utterance(turn, self.start(endpointer), settle, decoded_to=endpointer.position)
