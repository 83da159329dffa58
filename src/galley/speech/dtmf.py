"""Finds the tones of telephone keys (DTMF, ITU-T Q.23) in a recording, by the powers at their frequencies.

The limits are those of receivers (Q.24): a key's two tones last 40 ms or more, differ by at most 8 dB, and
are off by at most 1.5 %. Speech rarely has nearly all of its power in two such tones at once.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.speech.features import SAMPLE_RATE
from galley.speech.sources import Samples

_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_OFF: Final = (0.988, 1.0, 1.012)
"""Where the power at a frequency is computed, so that a tone that is off by 1.5 % has most of it."""

_SIZE: Final = SAMPLE_RATE * 256 // 10_000
_HOP: Final = _SIZE // 4
"""Samples whose power is computed, 25.6 ms, and from one to the next."""
_LEAST: Final = 3
"""Windows in a row with the same key: 38 ms."""
_SHARE: Final = 0.75
"""Least share of the power in the two tones."""
_TWIST: Final = 10 ** (8 / 10)
"""Greatest ratio of the powers of the two tones."""
_QUIET: Final = 10 ** (-50 / 10)
"""Least power: 50 dB below full scale."""
_MARGIN: Final = _HOP
"""Samples before the first window's start and after the last one's end that may have some of the tone."""

_TIMES: Final = np.arange(_SIZE) / SAMPLE_RATE
_FREQUENCIES: Final = np.array([f * off for f in (*_ROWS, *_COLUMNS) for off in _OFF])
_WAVES: Final = np.exp(-2j * np.pi * np.outer(_TIMES, _FREQUENCIES)).astype(np.complex64)
"""One column for each frequency; the product with it is what Goertzel's recurrence computes."""


class KeyTones:
    """The keys that are pressed in one recording or stream, which arrives in blocks of any size."""

    def __init__(self) -> None:
        self._left = np.zeros(0, np.float32)
        self._position = 0
        """First sample of ``_left``."""
        self._key = -1
        self._since = self._windows = 0
        self._found: list[tuple[int, int]] = []

    def feed(self, samples: Samples) -> None:
        """Look for tones in the next block, mono float32 at 16 kHz."""
        signal = np.concatenate([self._left, samples])
        count = max(0, (len(signal) - _SIZE) // _HOP + 1)
        if count:
            frames = np.lib.stride_tricks.sliding_window_view(signal, _SIZE)[: count * _HOP : _HOP]
            for number, key in enumerate(_keys(frames)):
                self._take(int(key), self._position + number * _HOP)
        self._left = signal[count * _HOP :]
        self._position += count * _HOP

    def finish(self) -> list[tuple[float, float]]:
        """Return the start and end of each press in seconds; which key it is stays private."""
        self._take(-1, self._position)
        return [(start / SAMPLE_RATE, end / SAMPLE_RATE) for start, end in self._found]

    def _take(self, key: int, position: int) -> None:
        if key == self._key:
            self._windows += 1
            return
        if self._key >= 0 and self._windows >= _LEAST:
            last = self._since + (self._windows - 1) * _HOP + _SIZE
            self._found.append((max(0, self._since - _MARGIN), last + _MARGIN))
        self._key, self._since, self._windows = key, position, 1


def _keys(frames: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the number of the key, 0 to 15, in each of ``[frames, _SIZE]`` samples; -1: none."""
    power = np.square(frames).mean(axis=1)
    # A sine of amplitude a has the power a * a / 2, and its product with the wave is a * _SIZE / 2.
    at = 2 * np.square(np.abs(frames @ _WAVES) / _SIZE).reshape(len(frames), 8, len(_OFF)).max(2)
    rows, columns = at[:, :4], at[:, 4:]
    row, column = rows.max(axis=1), columns.max(axis=1)
    pressed = (row + column >= _SHARE * power) & (power >= _QUIET)
    pressed &= (row <= _TWIST * column) & (column <= _TWIST * row)
    return np.where(pressed, 4 * rows.argmax(axis=1) + columns.argmax(axis=1), -1)
