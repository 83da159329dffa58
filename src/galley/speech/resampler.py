"""Resamples live audio with little delay: a windowed-sinc filter in polyphase form.

A general resampler holds back tens of milliseconds, which delays answers. This one computes a period of the
two rates at a time, 2 samples of 3 from 24 kHz to 16 kHz, and needs two milliseconds of audio after it.
"""

import math
from typing import Any, Final, TypeAlias

import numpy as np
import soxr
from numpy.typing import NDArray

Samples: TypeAlias = NDArray[np.float32]

_CROSSINGS: Final = 32
"""Zero crossings of the sinc on each side."""
_BETA: Final = 8.0
"""Parameter of the Kaiser window, with which aliases are 80 dB lower."""
_PASSED: Final = 0.92
"""Share of the lower rate's band that passes."""
_LONGEST_PERIOD: Final = 480
"""Samples of a period; rates with a longer one are left to soxr."""


class LiveResampler:
    """Resamples one mono stream.

    Args:
        rate, to_rate: samples per second before and after.
    """

    def __init__(self, rate: int, to_rate: int) -> None:
        divisor = math.gcd(rate, to_rate)
        self._rate, self._to_rate = rate, to_rate
        self._period, made = rate // divisor, to_rate // divisor
        self._slow: Any = None
        self._taken = self._given = 0
        if self._period > _LONGEST_PERIOD:
            self._slow = soxr.ResampleStream(rate, to_rate, 1, dtype="float32", quality="HQ")
            return
        cutoff = _PASSED * min(1.0, to_rate / rate)  # of half of the old rate
        self._reach = math.ceil(_CROSSINGS / cutoff)
        self._filters = _filters(self._period, made, self._reach, cutoff)
        self._held = np.zeros(self._reach, np.float32)

    def feed(self, samples: Samples) -> Samples:
        """Return the samples, float32, that the stream's next ones complete."""
        self._taken += len(samples)
        if self._slow is not None:
            slow: Samples = self._slow.resample_chunk(samples)
            return slow
        made = self._feed(samples)
        self._given += len(made)
        return made

    def finish(self) -> Samples:
        """Return the rest; the stream is over."""
        if self._slow is not None:
            rest: Samples = self._slow.resample_chunk(np.empty(0, np.float32), last=True)
            return rest
        left = round(self._taken * self._to_rate / self._rate) - self._given
        return self._feed(np.zeros(2 * self._reach + self._period, np.float32))[:left]

    def _feed(self, samples: Samples) -> Samples:
        held = np.concatenate([self._held, samples])
        periods = max(0, (len(held) - 2 * self._reach) // self._period)
        self._held = held[periods * self._period :]
        if not periods:
            return np.empty(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(held, len(self._filters))
        made: Samples = windows[: periods * self._period : self._period] @ self._filters
        return made.ravel()


def _filters(period: int, made: int, reach: int, cutoff: float) -> Samples:
    """Return the weights, ``[period + 2 reach, made]``, of a window's samples in each new sample."""
    places = np.arange(period + 2 * reach)[:, None] - reach - np.arange(made) * period / made
    inside = np.sqrt(np.maximum(0.0, 1 - (places / reach) ** 2))
    window = np.where(np.abs(places) < reach, np.i0(_BETA * inside) / np.i0(_BETA), 0.0)
    weights = cutoff * np.sinc(cutoff * places) * window
    normal: Samples = (weights / weights.sum(axis=0)).astype(np.float32)
    return normal
