"""Recordings that are already arrays, such as those of soundfile, librosa or torchaudio."""

import numpy as np

from galley.errors import RequestError, shown
from galley.speech.audio import MAX_RATE, MIN_RATE, RawPcm


def pcm_of(samples: object, sample_rate: int) -> tuple[bytes, RawPcm]:
    """Return an array as a file without a header, and the format of that file.

    Args:
        samples: a mono array ``[samples]``, or an object that numpy converts to one: floats in [-1, 1], or
            int16.
        sample_rate: sample rate in Hz.

    Raises:
        RequestError: the array or the sample rate is invalid; ``param`` is ``source`` or ``sample_rate``.
    """
    if not isinstance(sample_rate, int) or not MIN_RATE <= sample_rate <= MAX_RATE:
        raise RequestError(
            f"expected a whole number from {MIN_RATE} to {MAX_RATE}, got {shown(sample_rate)}",
            param="sample_rate",
        )
    if not hasattr(samples, "__array__"):
        raise RequestError(
            "expected a path, a file's bytes, an open file, or an array of samples; got "
            f"{shown(samples)} ({type(samples).__name__})",
            param="source",
        )
    array = np.asarray(samples)
    if array.ndim != 1:
        raise RequestError(
            f"expected one channel, [samples]; got an array of shape {list(array.shape)}; pass the mean of "
            "the channels",
            param="source",
        )
    if array.dtype == np.int16:
        return array.astype("<i2").tobytes(), RawPcm(sample_rate, type="s16le")
    if np.issubdtype(array.dtype, np.floating):
        return array.astype("<f4").tobytes(), RawPcm(sample_rate, type="f32le")
    raise RequestError(
        f"expected floats in [-1, 1] or int16, got an array of {array.dtype}", param="source"
    )
