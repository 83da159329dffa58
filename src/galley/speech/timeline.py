"""The position of each decoded frame in a recording, by its time stamp."""

from typing import Final

from av.audio.frame import AudioFrame

_TIMED: Final = ("matroska", "webm", "mov", "mp4", "asf", "mpegts", "mpeg", "ogg")
"""FFmpeg's names of containers with timestamps; in others, timestamps only count earlier samples."""
_RESTARTS: Final = ("mpegts", "mpeg", "ogg")
"""Containers whose timestamps can restart anywhere."""
_JITTER: Final = 0.1
"""Seconds by which timestamps and sample counts can differ; containers round to milliseconds."""
_LONGEST_RESTARTING_GAP: Final = 60.0
"""If timestamps can restart, a gap of more seconds is treated as a restart."""
_LONGEST_GAP: Final = 24 * 3600.0
"""A gap of more seconds is treated as damage."""


class Timeline:
    """Counts the decoded seconds of a recording, and computes the silence missing before a frame.

    Args:
        container: FFmpeg's name of the container, or several names separated by commas.
        start: time stamp at which the recording begins, in seconds.
    """

    def __init__(self, container: str, start: float) -> None:
        names = container.split(",")
        self._timed = any(name in _TIMED for name in names)
        restarts = any(name in _RESTARTS for name in names)
        self._longest = _LONGEST_RESTARTING_GAP if restarts else _LONGEST_GAP
        self._offset = -start
        self._position = 0.0

    def silence_before(self, frame: AudioFrame) -> float:
        """Return the seconds of silence between the previous audio and ``frame``."""
        if not self._timed or frame.pts is None or frame.time_base is None:
            return 0.0
        gap = float(frame.pts * frame.time_base) + self._offset - self._position
        if -_JITTER <= gap <= _JITTER:
            return 0.0
        if gap < 0 or gap > self._longest:
            self._offset -= gap
            return 0.0
        return gap

    def advance(self, samples: int, rate: int) -> None:
        """Advance the timeline by ``samples`` samples at ``rate`` Hz."""
        self._position += samples / rate
