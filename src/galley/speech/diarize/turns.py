"""Turns of speakers, from the observations of a recording and the voices of its speakers."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from galley.speech.diarize.nets import FRAME_CENTER, FRAME_STEP, FRAMES
from galley.speech.diarize.voices import ACTIVE, STEP_FRAMES, Observations, Window, runs_of
from galley.speech.features import SAMPLE_RATE

_GAP_SECONDS: Final = 0.3
"""A shorter pause does not end a turn."""
_LEAST_SECONDS: Final = 0.2
"""A shorter turn is a mistake."""


class Turn(NamedTuple):
    """A stretch of one speaker's speech, in seconds of the recording."""

    speaker: int
    start: float
    end: float


def turns_of(found: Observations, speakers: NDArray[np.float32], sharpness: float) -> list[Turn]:
    """Return the turns in the order of their starts; those of different speakers may overlap.

    Args:
        found: the observations.
        speakers: the voices of the speakers, float32 ``[speakers, width]``.
        sharpness: how much a voice's likeness to speakers decides between them.
    """
    if not len(speakers):
        return []
    count, seen = _active(found.windows)
    scores = _along(found, speakers, len(count), sharpness) + _local(found.windows, speakers, seen)
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    chosen = ranks < count[:, None]
    turns = [
        turn
        for speaker in range(len(speakers))
        for turn in _runs(chosen[:, speaker], speaker, found.seconds)
    ]
    return sorted(turns, key=lambda turn: (turn.start, turn.end))


def _place(number: int) -> slice:
    return slice(number * STEP_FRAMES, number * STEP_FRAMES + FRAMES)


def _active(windows: Sequence[Window]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return how many speakers are active in each frame, and how many windows cover it."""
    frames = (len(windows) - 1) * STEP_FRAMES + FRAMES
    active, seen = np.zeros(frames, np.float32), np.zeros(frames, np.float32)
    for number, window in enumerate(windows):
        active[_place(number)] += (window.activity > ACTIVE).sum(axis=1)
        seen[_place(number)] += 1
    return np.rint(active / seen).astype(np.int64), seen


def _along(
    found: Observations, speakers: NDArray[np.float32], frames: int, sharpness: float
) -> NDArray[np.float32]:
    """Return the probability of each speaker by the voices along the recording, ``[frames, speakers]``."""
    scores = np.zeros((frames, len(speakers)), np.float32)
    weights = np.full((frames, 1), 1e-9, np.float32)
    for voice in found.voices:
        first, last = (
            max(0, (sample - FRAME_CENTER) // FRAME_STEP) for sample in (voice.start, voice.end)
        )
        shape = np.bartlett(last - first + 3)[1:-1, None].astype(np.float32)
        place = slice(first, min(last + 1, frames))
        shape = shape[: place.stop - place.start]
        scores[place] += shape * (voice.vector @ speakers.T)
        weights[place] += shape
    likeness = np.exp(sharpness * (scores / weights))
    share: NDArray[np.float32] = likeness / likeness.sum(axis=1, keepdims=True)
    return share


def _local(
    windows: Sequence[Window], speakers: NDArray[np.float32], seen: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return how active each speaker is by the windows that tell several apart, ``[frames, speakers]``."""
    votes = np.zeros((len(seen), len(speakers)), np.float32)
    for number, window in enumerate(windows):
        local = np.flatnonzero(window.voices.any(axis=1))
        if len(local):
            whose = _assigned(window.voices[local] @ speakers.T)
            for one, speaker in zip(local, whose, strict=True):
                votes[_place(number), speaker] += window.activity[:, one]
    return votes / seen[:, None]


def _assigned(likeness: NDArray[np.float32]) -> Sequence[int]:
    """Return the speaker of each local speaker: different ones, as far as there are enough."""
    local, speakers = likeness.shape
    if local > speakers:
        return [int(speaker) for speaker in likeness.argmax(axis=1)]
    # The sum of each choice, of which there are at most 32 to the power of three.
    sums = np.zeros((speakers,) * local, np.float32)
    taken = np.zeros(sums.shape, bool)
    numbers = np.indices(sums.shape, sparse=True)
    for one, row in enumerate(likeness):
        sums += row[numbers[one]]
        for other in range(one):
            taken |= numbers[one] == numbers[other]
    sums[taken] = -np.inf
    return [int(speaker) for speaker in np.unravel_index(sums.argmax(), sums.shape)]


def _runs(chosen: NDArray[np.bool_], speaker: int, seconds: float) -> list[Turn]:
    runs: list[Turn] = []
    for samples in runs_of(chosen):
        start, end = (min(sample / SAMPLE_RATE, seconds) for sample in samples)
        if runs and start - runs[-1].end < _GAP_SECONDS:
            start = runs.pop().start
        runs.append(Turn(speaker, round(start, 3), round(end, 3)))
    return [run for run in runs if run.end - run.start >= _LEAST_SECONDS]
