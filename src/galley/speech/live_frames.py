"""The speech probabilities of a live stream's latest frames, and where to cut speech that is too long."""

import itertools
from collections import deque

from galley.speech.segmenter import VAD_FRAME, longest_pause


class LiveFrames:
    """The probabilities up to a position that moves on with each frame. Positions are in samples."""

    def __init__(self) -> None:
        self._probabilities: deque[float] = deque()

    def add(self, probability: float) -> None:
        """Add the next frame's probability."""
        self._probabilities.append(probability)

    def drop_before(self, needed: int, position: int) -> None:
        """Drop the frames that end before ``needed``; the latest one ends at ``position``."""
        while (
            self._probabilities and position - (len(self._probabilities) - 1) * VAD_FRAME <= needed
        ):
            self._probabilities.popleft()

    def cut_point(self, start: int, end: int, position: int, silence_below: float) -> int:
        """Return the position at which to cut audio from ``start`` to ``end``.

        It lies in the longest pause in the second half or, without a pause, in the frame with the lowest
        probability there.

        Args:
            start: start of the audio.
            end: end of the audio.
            position: end of the latest frame.
            silence_below: probability below which a frame is silent.
        """
        oldest = position // VAD_FRAME - len(self._probabilities)
        first = max(oldest, -(-(start + end) // (2 * VAD_FRAME)))
        frames = list(
            itertools.islice(self._probabilities, first - oldest, end // VAD_FRAME - oldest)
        )
        if not frames:
            return end
        pause = longest_pause(frames, silence_below)
        if pause is None:
            pause = frames.index(min(frames)) * VAD_FRAME + VAD_FRAME // 2
        return first * VAD_FRAME + pause
