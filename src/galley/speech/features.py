"""Log-mel features as Whisper was trained on (arXiv:2212.04356, 2.2).

A frame is a Hann window of 25 ms every 10 ms; its power spectrum is summed into triangular bands, of which
the logarithm is taken, at most 80 dB below the window's loudest, and scaled to about [-1, 1].
"""

from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from galley.audio import SpeechInfo
from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import read_json

CONFIG_FILE: Final = "preprocessor_config.json"
SAMPLE_RATE: Final = 16_000
FRAME: Final = 400
"""Samples that a frame looks at."""
HOP: Final = 160
"""Samples from one frame to the next."""

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
        chunk_seconds: how long the model's windows are.
        pad: shorter ones with silence up to that, as Whisper's own checkpoints expect; else a window
            has as many frames as its samples make.
    """

    def __init__(self, mels: int = 80, chunk_seconds: float = 30, *, pad: bool = True) -> None:
        self.mels = mels
        self.chunk_seconds = chunk_seconds
        self.chunk_samples = round(chunk_seconds * SAMPLE_RATE)
        self.pads = pad
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
        self._hann: NDArray[np.float32] = hann.astype(np.float32)
        self._bands = mel_bands(mels, FRAME // 2 + 1, SAMPLE_RATE)

    @classmethod
    def of_model(cls, folder: Path, speech: SpeechInfo) -> Self:
        """As ``preprocessor_config.json`` has it, if the checkpoint brings one.

        It may say ``"padding": "do_not_pad"`` of a model that was trained on windows of any length.

        Raises:
            CheckpointError: it is damaged, or contradicts the model.
            UnsupportedModel: it asks for other features than Whisper's.
        """
        path = folder / CONFIG_FILE
        seconds = speech.max_frames * HOP / SAMPLE_RATE
        if not path.exists():
            return cls(speech.mels, seconds)
        config = read_json(path)
        for name, value in (("n_fft", FRAME), ("hop_length", HOP), ("sampling_rate", SAMPLE_RATE)):
            if config.get(name, value) != value:
                raise UnsupportedModel(f"{path}: {name} is {config[name]!r}; Galley has {value}")
        if config.get("feature_size", speech.mels) != speech.mels:
            raise CheckpointError(
                f"is {config['feature_size']!r}, the model has {speech.mels} mel bins",
                file=str(path),
                field="feature_size",
            )
        padding = config.get("padding", "max_length")
        if padding not in ("max_length", "do_not_pad"):
            raise UnsupportedModel(
                f"{path}: padding is {padding!r}; Galley has 'max_length' and 'do_not_pad'"
            )
        return cls(speech.mels, seconds, pad=padding == "max_length")

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features of one window, float32 ``[frames, mels]``.

        Args:
            samples: mono float32 ``[samples]``, at most ``chunk_samples``.

        Raises:
            ValueError: the window is longer than the model's.
        """
        if len(samples) > self.chunk_samples:
            raise ValueError(
                f"a window of {len(samples)} samples is longer than {self.chunk_samples}"
            )
        length = self.chunk_samples if self.pads else max(len(samples), FRAME)
        features = np.empty((length // HOP, self.mels), np.float32)
        heard = min(len(features), -(-(len(samples) + FRAME // 2) // HOP))
        self._powers(self._framed(samples, length)[:heard], features)
        np.log10(np.maximum(features[:heard], _FLOOR), out=features[:heard])
        features[heard:] = np.log10(_FLOOR)
        np.maximum(features, features.max() - _RANGE, out=features)
        features += 4.0
        features /= 4.0
        return features

    def _framed(self, samples: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Overlapping frames, as a view; frame t has sample t * hop in its middle, ends are mirrored."""
        half = FRAME // 2
        signal = np.zeros(length + 2 * half, np.float32)
        signal[half : half + len(samples)] = samples
        signal[:half] = signal[2 * half : half : -1]
        signal[-half:] = signal[-half - 2 : -2 * half - 2 : -1]
        return np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP]

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
