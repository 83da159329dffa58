"""The telephone line between a caller and the model: 300 to 3400 Hz, pauses, noise, loudness.

Takes clean speech at 8 kHz (`voices.RATE`) and returns what Galley's pipeline would pass to the
features: 16 kHz samples received over a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import soxr

from galley.speech.audio import SAMPLE_RATE

from .voices import RATE, Samples

COLORS: Final = {"white": 0.0, "pink": -1.0, "brown": -2.0, "blue": 1.0}
"""Color -> the exponent with which the noise's power changes with frequency."""
SNR: Final = (10.0, 30.0)
"""Range of speech over noise within the band, in dB."""
_BAND: Final = (300.0, 3400.0)
_EDGE: Final = 80.0
"""Width in Hz of the band's edges."""


@dataclass(frozen=True, slots=True)
class Line:
    """The telephone line of one call.

    Attributes:
        snr: signal-to-noise ratio in dB.
        color: a key of `COLORS`.
        gain: level of the loudest speech in dB, relative to 0.7 of full scale.
        before, after: seconds of line noise around the speech.
        warp: pitch, formants and speed together are raised by this factor.
        seed: seed of the noise.
    """

    snr: float
    color: str
    gain: float
    before: float
    after: float
    warp: float
    seed: int


def draw(rng: np.random.Generator, *, warp: float = 0.0) -> Line:
    """Return a random line; `warp` is how far from 1 its factor may lie."""
    return Line(
        snr=float(rng.uniform(*SNR)),
        color=str(rng.choice(tuple(COLORS))),
        gain=float(rng.uniform(-24, 0)),
        before=float(rng.uniform(0.05, 0.6)),
        after=float(rng.uniform(0.05, 0.7)),
        warp=float(rng.uniform(1 - warp, 1 + warp)),
        seed=int(rng.integers(2**31)),
    )


def band(speech: Samples) -> Samples:
    """Filter speech at `RATE` to the telephone band."""
    size = _whole(len(speech))
    filtered = np.fft.irfft(np.fft.rfft(speech, size) * _passed(size), size)
    return filtered[: len(speech)].astype(np.float32)


def over(speech: Samples, line: Line) -> Samples:
    """Return band-filtered speech as received: float32 `[samples]` at 16 kHz.

    Empty input (`[0]`) gives noise alone, at the level it would have with speech.
    """
    rng = np.random.default_rng(line.seed)
    before, after = round(line.before * RATE), round(line.after * RATE)
    noise = _noise(rng, before + len(speech) + after, line.color)
    loudness = float(np.sqrt(np.mean(np.square(speech)))) if len(speech) else 0.1
    received = noise * np.float32(loudness * 10 ** (-line.snr / 20))
    received[before : before + len(speech)] += speech
    received *= np.float32(10 ** (line.gain / 20))
    wide: Samples = soxr.resample(received, RATE * line.warp, SAMPLE_RATE)
    # Codecs and sound cards leave some hiss above the line's band, whose level carries no information.
    hiss = 10 ** (rng.uniform(-100, -60) / 20)
    wide += np.float32(hiss) * rng.standard_normal(len(wide), np.float32)
    return np.clip(wide, -1, 1)


def arrival(seconds: float, line: Line) -> float:
    """Return the time at which a point `seconds` into the speech is received."""
    return (line.before + seconds) / line.warp


def _noise(rng: np.random.Generator, count: int, color: str) -> Samples:
    """Return line noise: within the band, its root mean square 1."""
    size = _whole(count)
    spectrum = np.fft.rfft(rng.standard_normal(size, np.float32))
    frequencies = np.fft.rfftfreq(size, 1 / RATE)
    spectrum *= _passed(size) * np.maximum(frequencies, 1.0) ** (COLORS[color] / 2)
    noise = np.fft.irfft(spectrum, size)
    scaled: Samples = (noise[:count] / np.sqrt(np.mean(np.square(noise)))).astype(np.float32)
    return scaled


def _whole(count: int) -> int:
    """Return a size of at least `count` for which the FFT is fast."""
    return -(-count // 4096) * 4096


def _passed(count: int) -> Samples:
    """Return the share of each frequency that the line transmits."""
    frequencies = np.fft.rfftfreq(count, 1 / RATE)
    low = np.clip((frequencies - _BAND[0]) / _EDGE + 0.5, 0, 1)
    high = np.clip((_BAND[1] - frequencies) / _EDGE + 0.5, 0, 1)
    share: Samples = (low * high).astype(np.float32)
    return share
