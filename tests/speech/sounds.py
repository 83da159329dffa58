"""Generated sounds of a telephone: the tones of keys, a line, and music of a caller on hold."""

from itertools import product
from typing import Final

import numpy as np
import soxr

from galley.speech.audio import SAMPLE_RATE, Samples

KEYS: Final = list(product((697, 770, 852, 941), (1209, 1336, 1477, 1633)))
"""Frequencies of the keys' two tones, in Hz."""


def press(
    row: float,
    column: float,
    ms: float,
    *,
    off: float = 1.0,
    twist: float = 0.0,
    level: float = -20.0,
) -> Samples:
    """Return a key's tone with 200 ms of silence on both sides.

    Args:
        row, column: frequencies of the two tones, in Hz.
        ms: length.
        off: factor of both frequencies.
        twist: dB by which the second tone is louder.
        level: of the first tone, in dB below full scale.
    """
    times = np.arange(int(ms * SAMPLE_RATE / 1000)) / SAMPLE_RATE
    first = np.sin(2 * np.pi * row * off * times)
    second = 10 ** (twist / 20) * np.sin(2 * np.pi * column * off * times)
    quiet = np.zeros(SAMPLE_RATE // 5, np.float32)
    tone = 10 ** (level / 20) * (first + second)
    return np.concatenate([quiet, tone, quiet]).astype(np.float32)


def over_a_telephone(samples: Samples) -> Samples:
    """Return samples at 8 kHz with mu-law's levels, and back at 16 kHz."""
    narrow = np.clip(soxr.resample(samples, SAMPLE_RATE, SAMPLE_RATE // 2), -1, 1)
    level = np.round(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
    wide = np.sign(level) * np.expm1(np.abs(level) * np.log(256)) / 255
    return np.asarray(soxr.resample(wide, SAMPLE_RATE // 2, SAMPLE_RATE), np.float32)


def tune(seconds: int) -> Samples:
    """Return a chord for each second, with the overtones of strings, and a drum."""
    times = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    bars = []
    for bar in range(seconds):
        wave = sum(
            np.sin(2 * np.pi * 440 * 2 ** ((note - 69) / 12) * n * times) / n**1.5
            for note in ((45, 52, 57, 61), (50, 57, 62, 66))[bar % 2]
            for n in range(1, 8)
        )
        drum = np.random.default_rng(bar).normal(size=SAMPLE_RATE) * np.exp(-times / 0.05)
        bars.append(0.05 * wave * np.exp(-times) + 0.02 * drum)
    return np.concatenate(bars).astype(np.float32)
