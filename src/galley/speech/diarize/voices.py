"""Observations of a recording: who is active in each window, and the voices along it.

Segmentation finds when somebody speaks, when two do, and, within a window, who does. It may mistake similar
voices for one, so voices are also computed of short parts of speech, whoever speaks in them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from galley.speech.audio_buffer import AudioBuffer
from galley.speech.diarize.encoders import PART
from galley.speech.diarize.nets import (
    FRAME_CENTER,
    FRAME_STEP,
    FRAMES,
    LOCAL_SPEAKERS,
    WINDOW,
    Nets,
)
from galley.speech.features import HOP, SAMPLE_RATE
from galley.speech.sources import Samples

STEP_FRAMES: Final = 74
"""Frames of segmentation from the start of one window to that of the next: 1.25 s."""
STEP: Final = STEP_FRAMES * FRAME_STEP
ACTIVE: Final = 0.5
"""Least probability of an active speaker."""
_CENTER: Final = (FRAMES - STEP_FRAMES) // 2
"""First frame of the middle of a window, in which its speech is used for parts."""
_PART_STEP: Final = PART // 2
_LEAST_PART: Final = PART // 4
"""Samples of the shortest stretch of speech that has a voice."""
_PAUSE: Final = SAMPLE_RATE // 4
"""Samples of a pause that separates two stretches."""
_BATCH: Final = 8
"""Windows that are segmented at a time."""


class Voice(NamedTuple):
    """The voice of a stretch of speech, which may be of more than one speaker.

    Attributes:
        vector: unit vector, float32 ``[width]``.
        start, end: the stretch, in samples of the recording.
    """

    vector: NDArray[np.float32]
    start: int
    end: int


class Window(NamedTuple):
    """The local speakers of one window, numbered within it.

    Attributes:
        activity: probability of each being active, float16 ``[FRAMES, 3]``.
        voices: their voices, float32 ``[3, width]``; zeros where the window has only one, and for one who
            never speaks alone.
    """

    activity: NDArray[np.float16]
    voices: NDArray[np.float32]


@dataclass
class Observations:
    """All that is kept of a recording; some kilobytes for each second.

    Attributes:
        windows: in order, one every ``STEP`` samples.
        voices: in order.
        samples: length of the recording.
    """

    windows: list[Window] = field(default_factory=list)
    voices: list[Voice] = field(default_factory=list)
    samples: int = 0

    @property
    def seconds(self) -> float:
        """Length of the recording."""
        return self.samples / SAMPLE_RATE


def observe(blocks: Iterable[Samples], nets: Nets) -> Observations:
    """Return the observations of a recording, whose blocks are mono float32 at 16 kHz."""
    observer = _Observer(nets)
    for block in blocks:
        observer.feed(block)
    return observer.finish()


class _Observer:
    """Observes a recording block by block; keeps the audio of a few windows."""

    def __init__(self, nets: Nets) -> None:
        self._nets = nets
        self._audio = AudioBuffer()
        self._found = Observations()
        self._next = 0
        """First sample of the next window."""
        self._stretch: list[tuple[int, Samples]] = []
        """Speech since the last pause: position and samples of each run."""
        self._parts: list[tuple[Samples, int, int]] = []
        """Parts whose voices are to be computed, with their start and end in the recording."""

    def feed(self, samples: Samples) -> None:
        self._audio.append(samples)
        self._found.samples += len(samples)
        while self._audio.end >= self._next + WINDOW + (_BATCH - 1) * STEP:
            self._observe(_BATCH)

    def finish(self) -> Observations:
        left = self._audio.end - self._next
        count = max(0, -(-(left - WINDOW) // STEP)) + 1 if self._audio.end else 0
        self._audio.append(np.zeros(max(0, WINDOW + (count - 1) * STEP - left), np.float32))
        while count > 0:
            self._observe(min(count, _BATCH), last=count <= _BATCH)
            count -= _BATCH
        return self._found

    def _observe(self, count: int, *, last: bool = False) -> None:
        starts = [self._next + number * STEP for number in range(count)]
        windows = np.stack([self._audio.read(start, start + WINDOW) for start in starts])
        activities = self._nets.activity(windows)
        clips: list[Samples] = []
        owners: list[tuple[int, int]] = []
        for start, samples, activity in zip(starts, windows, activities, strict=True):
            active = activity > ACTIVE
            alone = active.sum(axis=1) == 1
            first = 0 if start == 0 else _CENTER
            end = FRAMES if last and start == starts[-1] else _CENTER + STEP_FRAMES
            self._speech(start, samples, first, alone[first:end])
            voices = np.zeros((LOCAL_SPEAKERS, self._nets.encoder.width), np.float32)
            for speaker, clip in _local(samples, active & alone[:, None]):
                owners.append((len(self._found.windows), speaker))
                clips.append(clip)
            self._found.windows.append(Window(activity.astype(np.float16), voices))
        for (window, speaker), vector in zip(owners, self._nets.voices(clips), strict=True):
            self._found.windows[window].voices[speaker] = vector
        if last:
            self._end_stretch()
        self._flush()
        self._next = starts[-1] + STEP
        self._audio.drop_before(self._next)

    def _speech(self, start: int, samples: Samples, first: int, alone: NDArray[np.bool_]) -> None:
        """Add a window's speech to the stretches."""
        for a, b in runs_of(alone, first):
            position = start + a
            end = self._stretch[-1][0] + len(self._stretch[-1][1]) if self._stretch else position
            if position - end >= _PAUSE:
                self._end_stretch()
            self._stretch.append((position, samples[a:b]))
        self._take(whole=False)

    def _end_stretch(self) -> None:
        self._take(whole=True)
        self._stretch = []

    def _take(self, *, whole: bool) -> None:
        """Take the parts of the stretch as far as it goes; keep what the next part needs."""
        if not self._stretch:
            return
        speech = np.concatenate([samples for _, samples in self._stretch])
        places = np.concatenate([p + np.arange(0, len(s), HOP) for p, s in self._stretch])
        begun = 0
        while begun + PART <= len(speech):
            self._parts.append(_placed(speech, places, begun, begun + PART))
            begun += _PART_STEP
        rest = len(speech) - (begun - _PART_STEP + PART if begun else 0)
        if whole and rest >= (_LEAST_PART // 2 if begun else _LEAST_PART):
            self._parts.append(_placed(speech, places, max(0, len(speech) - PART), len(speech)))
        if not whole and begun:
            self._stretch = list(_after(self._stretch, begun))

    def _flush(self) -> None:
        """Compute the voices of the parts."""
        vectors = self._nets.voices([clip for clip, _, _ in self._parts])
        for vector, (_, start, end) in zip(vectors, self._parts, strict=True):
            self._found.voices.append(Voice(vector, start, end))
        self._parts = []


def voice_of(samples: Samples, nets: Nets) -> NDArray[np.float32]:
    """Return the mean voice of all of the samples, a unit vector, float32 ``[width]``."""
    starts = range(0, max(1, len(samples) - PART // 2), PART)
    voice = nets.voices([samples[start : start + PART] for start in starts]).mean(axis=0)
    unit: NDArray[np.float32] = voice / np.linalg.norm(voice).clip(1e-9)
    return unit


def _local(samples: Samples, alone: NDArray[np.bool_]) -> Iterator[tuple[int, Samples]]:
    """Yield a window's local speakers and what each says alone, where there are several."""
    speakers = np.flatnonzero(alone.any(axis=0))
    for speaker in speakers if len(speakers) > 1 else ():
        runs = [samples[a:b] for a, b in runs_of(alone[:, speaker])]
        yield int(speaker), np.concatenate(runs)


def _placed(
    speech: Samples, places: NDArray[np.int64], start: int, end: int
) -> tuple[Samples, int, int]:
    """Return a part of a stretch, and where in the recording it begins and ends."""
    first = int(places[min(start // HOP, len(places) - 1)])
    last = int(places[min((end - 1) // HOP, len(places) - 1)]) + HOP
    return speech[start:end], first, last


def runs_of(chosen: NDArray[np.bool_], first: int = 0) -> list[tuple[int, int]]:
    """Return the runs of chosen frames, counted from ``first``, as ranges of samples."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    samples = (edges + first) * FRAME_STEP + FRAME_CENTER - FRAME_STEP // 2
    return [(a, b) for a, b in samples.reshape(-1, 2).tolist()]


def _after(runs: list[tuple[int, Samples]], dropped: int) -> Iterator[tuple[int, Samples]]:
    """Yield runs without their first ``dropped`` samples."""
    for position, samples in runs:
        if dropped < len(samples):
            yield position + dropped, samples[dropped:]
        dropped = max(0, dropped - len(samples))
