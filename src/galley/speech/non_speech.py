"""Sounds of a call other than speech (music and the tones of keys), and recordings without them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from galley.speech.decoder import Audio
from galley.speech.dtmf import KeyTones
from galley.speech.features import SAMPLE_RATE
from galley.speech.music import MusicFinder
from galley.speech.sources import Samples

Times = tuple[float, float]
"""Start and end, in seconds."""


class Sounds(NamedTuple):
    """When music plays, and when a key is pressed; not which key, which may be one of a card's number."""

    music: tuple[Times, ...] = ()
    keys: tuple[Times, ...] = ()


def find_sounds(recording: Audio) -> Sounds:
    """Find the sounds of a recording, which is closed afterwards. Memory: some bytes for each second.

    Raises:
        AudioError: the recording cannot be decoded any further.
    """
    music, keys = MusicFinder(), KeyTones()
    try:
        for block in recording:
            music.feed(block)
            keys.feed(block)
    finally:
        recording.close()
    return Sounds(tuple(music.finish()), tuple(keys.finish()))


class Silenced:
    """A recording with silence in place of some passages; see :class:`galley.speech.decoder.Audio`."""

    def __init__(self, recording: Audio, passages: Iterable[Times]) -> None:
        """Wrap a recording, and close it with the wrapper."""
        self._recording = recording
        self._passages = tuple(passages)

    @property
    def duration(self) -> float | None:
        """The duration in seconds that the recording states."""
        return self._recording.duration

    @property
    def warnings(self) -> list[str]:
        """Warnings of the recording."""
        return self._recording.warnings

    @property
    def seconds(self) -> float:
        """Seconds of audio decoded so far."""
        return self._recording.seconds

    def __iter__(self) -> Iterator[Samples]:
        """Yield the recording's blocks."""
        position = 0
        for block in self._recording:
            yield silenced(block, position, self._passages)
            position += len(block)

    def close(self) -> None:
        """Close the recording. Idempotent."""
        self._recording.close()


def silenced(block: Samples, position: int, passages: Iterable[Times]) -> Samples:
    """Return the samples from ``position`` on, with silence in place of those of the passages."""
    clean = np.array(block)
    for passage_start, passage_end in passages:
        start = max(0, int(passage_start * SAMPLE_RATE) - position)
        end = min(len(block), int(passage_end * SAMPLE_RATE) + 1 - position)
        if start < end:
            clean[start:end] = 0.0
    return clean
