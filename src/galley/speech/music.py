"""Finds music in a recording, such as that of a caller on hold, by how steady and tuned its pitches are.

Notes keep their pitch for tenths of a second (as in Seyerlehner et al., "Automatic music detection in
television productions", DAFx 2007), and are tuned to semitones of one scale; voices glide between pitches.
The score of a window is the product of both, each from 0 to 1. Over a telephone line, people's speech in
``tests/real.py`` has 0.01 in the median and 0.06 at most, recorded tunes 0.08 to 0.17 in the median.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.speech.features import SAMPLE_RATE
from galley.speech.sources import Samples

LEAST: Final = 4.0
"""Seconds of the shortest passage: a ringtone or a sung word is none."""
_MUSIC: Final = 0.08
"""Least score of music: between that of recorded tunes and that of speech with a tune 5 dB below it."""
_VOTES: Final = 0.75
"""Least share of the windows around a step that are music."""
_SIZE: Final = 2048
_HOP: Final = 512
"""Samples of a spectrum, 128 ms, and from one to the next, 32 ms."""
_WINDOW: Final = 3 * SAMPLE_RATE // _HOP
_STEP: Final = SAMPLE_RATE // 2 // _HOP
"""Spectra of a window, 3 s, and from one window to the next, half a second."""
_LAGS: Final = (4, 8)
"""Spectra after which a note is looked for again: 128 and 256 ms."""
_FIRST: Final = 200 * _SIZE // SAMPLE_RATE
_LAST: Final = 3400 * _SIZE // SAMPLE_RATE
"""Bins of the band of telephones, without hum."""
_PEAK: Final = 10 ** (-40 / 20)
"""Least magnitude of a peak, compared with the window's greatest."""
_SILENT: Final = 10 ** (-80 / 10)
"""Power below which a window is silence: 80 dB below full scale."""
_TAPER: Final = np.hanning(_SIZE).astype(np.float32)


class MusicFinder:
    """The passages of music in one recording, which arrives in blocks of any size."""

    def __init__(self) -> None:
        self._left = np.zeros(0, np.float32)
        self._spectra = np.zeros((0, _LAST - _FIRST), np.float32)
        self._power = np.zeros(0, np.float32)
        self.scores: list[float] = []
        """Score of each window."""

    def feed(self, samples: Samples) -> None:
        """Look for music in the next block, mono float32 at 16 kHz. Memory: a number for half a second."""
        signal = np.concatenate([self._left, samples])
        count = max(0, (len(signal) - _SIZE) // _HOP + 1)
        self._left = signal[count * _HOP :]
        if count:
            frames = np.lib.stride_tricks.sliding_window_view(signal, _SIZE)[: count * _HOP : _HOP]
            spectra = np.abs(np.fft.rfft(frames * _TAPER)[:, _FIRST:_LAST]).astype(np.float32)
            power = np.square(signal[: count * _HOP].reshape(count, _HOP)).mean(axis=1)
            self._spectra = np.concatenate([self._spectra, spectra])
            self._power = np.concatenate([self._power, power])
        while len(self._spectra) >= _WINDOW:
            audible = self._power[:_WINDOW].mean() >= _SILENT
            self.scores.append(_score(self._spectra[:_WINDOW]) if audible else 0.0)
            self._spectra, self._power = self._spectra[_STEP:], self._power[_STEP:]

    def finish(self) -> list[tuple[float, float]]:
        """Return the start and end of each passage in seconds."""
        if not self.scores:
            return []
        across = _WINDOW // _STEP
        # Loud music is in the score of a window that has mostly speech, so one window is not enough.
        votes = np.convolve(np.array(self.scores) > _MUSIC, np.ones(across))
        counts = np.convolve(np.ones(len(self.scores)), np.ones(across))
        music = np.concatenate([[0], votes >= _VOTES * counts, [0]])
        edges = np.flatnonzero(np.diff(music)).reshape(-1, 2) * _STEP * _HOP / SAMPLE_RATE
        return [(float(start), float(end)) for start, end in edges if end - start >= LEAST]


def _score(spectra: NDArray[np.float32]) -> float:
    """Return the score of a window, of its spectra's magnitudes ``[spectra, bins]``."""
    middle = spectra[:, 1:-1]
    peaks = (middle > spectra[:, :-2]) & (middle >= spectra[:, 2:])
    peaks &= middle > _PEAK * spectra.max()
    weights = np.where(peaks, middle, 0.0)
    if not peaks.any():
        return 0.0
    steady = 0.0
    for lag in _LAGS:
        total = float(weights[:-lag].sum())
        again = float((weights[:-lag] * peaks[lag:]).sum())
        steady += again / total / len(_LAGS) if total else 0.0
    rows, columns = np.nonzero(peaks)
    # The place of each peak between the bins, by a parabola through three magnitudes.
    left, top, right = (spectra[rows, columns + shift] for shift in (0, 1, 2))
    place = columns + 1 + _FIRST + 0.5 * (left - right) / (left - 2 * top + right)
    semitones = 12 * np.log2(place)
    # All peaks of a scale have the same place within their semitone, wherever the scale begins.
    shares = weights[rows, columns] / weights.sum()
    tuned = abs(complex((shares * np.exp(2j * np.pi * semitones)).sum()))
    return steady * tuned
