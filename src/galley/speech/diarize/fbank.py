"""Kaldi's log-mel filter bank, the input of most published speaker encoders."""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from galley.speech.features import FRAME, HOP, SAMPLE_RATE
from galley.speech.sources import Samples

BANDS: Final = 80
_FFT: Final = 512
_PREEMPHASIS: Final = 0.97
_LOW_HZ: Final = 20.0
_FLOOR: Final = float(np.finfo(np.float32).eps)

Window = Literal["povey", "hamming"]


class FilterBank:
    """Computes the filter bank of a clip as Kaldi's ``compute-fbank-feats`` does, without dither.

    Args:
        window: name of the window in Kaldi.
    """

    def __init__(self, window: Window) -> None:
        shape = np.hanning(FRAME) ** 0.85 if window == "povey" else np.hamming(FRAME)
        self._window: NDArray[np.float32] = shape.astype(np.float32)
        self._bands = _bands()

    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        """Return log-mel energies, float32 ``[frames, 80]``, one frame every 10 ms.

        Args:
            samples: mono float32 ``[samples]`` at 16 kHz, at least 25 ms; shorter ones are padded.
        """
        if len(samples) < FRAME:
            samples = np.pad(samples, (0, FRAME - len(samples)))
        frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
        frames = frames - frames.mean(axis=1, keepdims=True)
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        spectrum = np.fft.rfft((frames - np.float32(_PREEMPHASIS) * before) * self._window, _FFT)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mels: NDArray[np.float32] = power.astype(np.float32) @ self._bands
        np.log(np.maximum(mels, _FLOOR), out=mels)
        return mels


def _bands() -> NDArray[np.float32]:
    """Return triangles on the mel scale, float32 ``[_FFT / 2 + 1, BANDS]``."""
    edges = np.linspace(_mel(_LOW_HZ), _mel(SAMPLE_RATE / 2), BANDS + 2)
    bins = _mel(np.arange(_FFT // 2 + 1) * SAMPLE_RATE / _FFT)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    bands: NDArray[np.float32] = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    bands[-1] = 0.0  # Kaldi leaves out the bin at half of the sample rate
    return bands


def _mel(hz: float | NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(np.asarray(hz) / 700.0))
