"""Log-mel features like those that Whisper was trained on (arXiv:2212.04356, 2.2).

A frame is 25 ms under a Hann window, one every 10 ms. Each frame's power spectrum is summed into triangular
mel bands. Their logarithms are clamped to 80 dB below the loudest band of the encoder input, and scaled to
about [-1, 1].
"""

from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import read_json
from galley.types.audio import EncoderInput, SpeechInfo

CONFIG_FILE: Final = "preprocessor_config.json"
SAMPLE_RATE: Final = 16_000
FRAME: Final = 400
"""Number of samples in a frame (``n_fft``)."""
HOP: Final = 160
"""Number of samples from the start of one frame to the start of the next (``hop_length``)."""

_FLOOR: Final = 1e-10
"""Minimum power of a band, so that silence has a logarithm."""
_RANGE: Final = 8.0
"""Powers of ten between the loudest band and the clamp."""
_TILE: Final = 256
"""Number of frames transformed at a time, so that their spectra stay in the CPU's cache."""
_ROWS: Final = 8
"""Frames multiplied by the mel bands at a time: for such a product, OpenBLAS does not wake threads, which
would spin for longer than it takes."""


class LogMel:
    """Computes log-mel features of chunks of audio, as one model's encoder expects them.

    Args:
        mels: number of mel bands; 80, or 128 since large-v3.
        chunk_seconds: the longest chunk in seconds, which is the encoder's input length.
        pad: pad shorter chunks with silence to ``chunk_seconds``, as Whisper's own checkpoints expect;
            False: a chunk has only as many frames as its samples give.

    Attributes:
        chunk_samples: number of samples in the longest chunk.
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
        """Read ``preprocessor_config.json`` in the checkpoint's ``folder``, if there is one.

        ``"padding": "do_not_pad"`` in that file marks a model that was trained on inputs of any length.

        Raises:
            CheckpointError: the file is damaged, or contradicts the model.
            UnsupportedModel: the file specifies features other than Whisper's.
        """
        path = folder / CONFIG_FILE
        seconds = speech.max_frames * HOP / SAMPLE_RATE
        if not path.exists():
            return cls(speech.mels, seconds)
        config = read_json(path)
        for name, value in (("n_fft", FRAME), ("hop_length", HOP), ("sampling_rate", SAMPLE_RATE)):
            if config.get(name, value) != value:
                raise UnsupportedModel(
                    f"{path}: {name} is {config[name]!r}; only {value} is supported"
                )
        if config.get("feature_size", speech.mels) != speech.mels:
            raise CheckpointError(
                f"is {config['feature_size']!r}, but the model has {speech.mels} mel bins",
                file=str(path),
                field="feature_size",
            )
        padding = config.get("padding", "max_length")
        if padding not in ("max_length", "do_not_pad"):
            raise UnsupportedModel(
                f"{path}: padding is {padding!r}; supported are 'max_length' and 'do_not_pad'"
            )
        return cls(speech.mels, seconds, pad=padding == "max_length")

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the features of one chunk, float32 ``[frames, mels]``.

        Args:
            samples: mono float32 ``[samples]`` at 16 kHz, at most ``chunk_samples``.

        Raises:
            ValueError: there are more than ``chunk_samples`` samples.
        """
        if len(samples) > self.chunk_samples:
            raise ValueError(
                f"a chunk of {len(samples)} samples is longer than {self.chunk_samples}"
            )
        length = self.chunk_samples if self.pads else max(len(samples), FRAME)
        features = np.empty((length // HOP, self.mels), np.float32)
        # Later frames lie entirely in the padding.
        used = min(len(features), -(-(len(samples) + FRAME // 2) // HOP))
        self._powers(self._framed(samples, length)[:used], features)
        np.log10(np.maximum(features[:used], _FLOOR), out=features[:used])
        features[used:] = np.log10(_FLOOR)
        np.maximum(features, features.max() - _RANGE, out=features)
        features += 4.0
        features /= 4.0
        return features

    def _framed(self, samples: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Return overlapping frames ``[frames, FRAME]``, a view.

        Frame t is centered on sample t * HOP of ``samples`` padded with zeros to ``length``; beyond both
        ends the signal is mirrored.
        """
        half = FRAME // 2
        signal = np.zeros(length + 2 * half, np.float32)
        signal[half : half + len(samples)] = samples
        signal[:half] = signal[2 * half : half : -1]
        signal[-half:] = signal[-half - 2 : -2 * half - 2 : -1]
        return np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP]

    def _powers(self, frames: NDArray[np.float32], into: NDArray[np.float32]) -> None:
        """Write the power of each frame's mel bands to the first rows of ``into``, ``[frames, mels]``."""
        for start in range(0, len(frames), _TILE):
            tile = frames[start : start + _TILE] * self._hann
            spectrum: NDArray[Any] = np.fft.rfft(tile)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            even = len(tile) // _ROWS * _ROWS
            rows = power[:even].reshape(-1, _ROWS, power.shape[1]) @ self._bands
            into[start : start + even] = rows.reshape(even, self.mels)
            into[start + even : start + len(tile)] = power[even:] @ self._bands


def encoder_input(features: NDArray[np.float32]) -> EncoderInput:
    """Return features ``[frames, mels]`` in the form in which requests pass them to the engine."""
    frames, mels = features.shape
    data = np.ascontiguousarray(features, "<f4").tobytes()
    return EncoderInput(frames=frames, mels=mels, data=data)


def rest_of(whole: EncoderInput, seconds: float, *, pads: bool) -> EncoderInput:
    """Return an encoder input without its first ``seconds``; with ``pads``, pad it with silence.

    The result keeps the scale of the whole input, as in openai/whisper.
    """
    features = np.frombuffer(whole.data, "<f4").reshape(whole.frames, whole.mels)
    first = min(round(seconds * SAMPLE_RATE / HOP), whole.frames - 1)
    if not pads:
        return encoder_input(features[first:])
    loudest = 4.0 * float(features.max()) - 4.0
    silence = max(loudest - _RANGE, float(np.log10(_FLOOR)))
    rest = np.full_like(features, (silence + 4.0) / 4.0)
    rest[: whole.frames - first] = features[first:]
    return encoder_input(rest)


def mel_bands(mels: int, bins: int, sample_rate: int) -> NDArray[np.float32]:
    """Return triangular bands of equal area, evenly spaced in mels: float32 ``[bins, mels]``.

    The scale is Slaney's (Auditory Toolbox, 1998): linear below 1 kHz, logarithmic above.
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
"""Hertz per mel, below 1 kHz."""
_BREAK_HERTZ: Final = 1000.0
_BREAK_MEL: Final = 15.0
_LOG_STEP: Final = np.log(6.4) / 27.0
"""Increase of the frequency's natural logarithm per mel, above 1 kHz."""


def _mel(hertz: float) -> float:
    if hertz < _BREAK_HERTZ:
        return hertz / _LINEAR_HERTZ
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HERTZ) / _LOG_STEP)


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HERTZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HERTZ, above)
