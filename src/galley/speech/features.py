"""Log-mel features as Whisper was trained on (arXiv:2212.04356, 2.2).

A frame is a Hann window of 25 ms every 10 ms; its power spectrum is summed into triangular bands, of which
the logarithm is taken, at most 80 dB below the window's loudest, and scaled to about [-1, 1].
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FLOOR: Final = 1e-10
"""Of a band's power, so that silence has a logarithm."""
_RANGE: Final = 8.0
"""Powers of ten below the loudest band of the window that are told apart."""
_TILE: Final = 256
"""Frames transformed at a time: their spectra stay in the cache."""


class LogMel:
    """Makes features of windows of one model.

    Args:
        mels: bands; 80, or 128 since large-v3.
        window_seconds: how long the model's windows are.
        sample_rate: Hz.
        frame: samples in one frame; an even number.
        hop: samples from one frame to the next.
    """

    def __init__(
        self,
        mels: int = 80,
        window_seconds: float = 30,
        *,
        sample_rate: int = 16_000,
        frame: int = 400,
        hop: int = 160,
    ) -> None:
        self.mels = mels
        self.hop = hop
        self.window_samples = round(window_seconds * sample_rate)
        self._frame = frame
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
        self._hann: NDArray[np.float32] = hann.astype(np.float32)
        self._bands = mel_bands(mels, frame // 2 + 1, sample_rate)

    def __call__(self, samples: NDArray[np.float32], *, pad: bool = True) -> NDArray[np.float32]:
        """Features of one window, float32 ``[frames, mels]``.

        Args:
            samples: mono float32 ``[samples]``, at most ``window_samples``.
            pad: with silence up to the model's window, as Whisper's own checkpoints expect;
                else there are as many frames as the samples have.

        Raises:
            ValueError: the window is longer than the model's.
        """
        if len(samples) > self.window_samples:
            raise ValueError(
                f"a window of {len(samples)} samples is longer than {self.window_samples}"
            )
        length = self.window_samples if pad else max(len(samples), self._frame)
        features = np.empty((length // self.hop, self.mels), np.float32)
        heard = min(len(features), -(-(len(samples) + self._frame // 2) // self.hop))
        self._powers(self._framed(samples, length)[:heard], features)
        np.log10(np.maximum(features[:heard], _FLOOR), out=features[:heard])
        features[heard:] = np.log10(_FLOOR)
        np.maximum(features, features.max() - _RANGE, out=features)
        features += 4.0
        features /= 4.0
        return features

    def _framed(self, samples: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Overlapping frames, as a view; frame t has sample t * hop in its middle, ends are mirrored."""
        half = self._frame // 2
        signal = np.zeros(length + 2 * half, np.float32)
        signal[half : half + len(samples)] = samples
        signal[:half] = signal[2 * half : half : -1]
        signal[-half:] = signal[-half - 2 : -2 * half - 2 : -1]
        return np.lib.stride_tricks.sliding_window_view(signal, self._frame)[:: self.hop]

    def _powers(self, frames: NDArray[np.float32], into: NDArray[np.float32]) -> None:
        for start in range(0, len(frames), _TILE):
            tile = frames[start : start + _TILE] * self._hann
            spectrum: NDArray[Any] = np.fft.rfft(tile)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            into[start : start + len(tile)] = power @ self._bands


def mel_bands(mels: int, bins: int, sample_rate: int) -> NDArray[np.float32]:
    """Triangular bands of equal area, evenly spaced in mels: float32 ``[bins, mels]``.

    Slaney's scale (Auditory Toolbox, 1998): linear below 1 kHz, logarithmic above.
    """
    top = sample_rate / 2
    edges = _hertz(np.linspace(0.0, _mel(top), mels + 2))
    frequencies = np.linspace(0.0, top, bins)[:, None]
    widths = np.diff(edges)
    rising = (frequencies - edges[:-2]) / widths[:-1]
    falling = (edges[2:] - frequencies) / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    bands: NDArray[np.float32] = (triangles * 2.0 / (edges[2:] - edges[:-2])).astype(np.float32)
    return bands


_LINEAR_HERTZ: Final = 200.0 / 3.0
"""A mel, below 1 kHz."""
_BREAK_HERTZ: Final = 1000.0
_BREAK_MEL: Final = 15.0
_LOG_STEP: Final = np.log(6.4) / 27.0
"""A mel above 1 kHz, as a step of the frequency's natural logarithm."""


def _mel(hertz: float) -> float:
    if hertz < _BREAK_HERTZ:
        return hertz / _LINEAR_HERTZ
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HERTZ) / _LOG_STEP)


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HERTZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HERTZ, above)
