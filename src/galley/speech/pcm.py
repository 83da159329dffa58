"""Converts headerless live audio, in messages of any size, to 16 kHz samples."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from galley.speech.audio import SAMPLE_RATE, Samples
from galley.speech.resampler import LiveResampler

Coding: TypeAlias = Literal["s16le", "mulaw", "alaw"]
_FULL: Final = np.float32(32_768)


class PcmStream:
    """Decoder and resampler of one mono stream.

    Args:
        coding: encoding of the samples: 16-bit PCM, or G.711 mu-law or A-law.
        rate: sample rate in Hz.
    """

    def __init__(self, coding: Coding, rate: int) -> None:
        self.coding = coding
        self.rate = rate
        self._resampler = self._fresh()
        self._half = b""
        """First byte of a sample whose second byte has not arrived yet."""

    def feed(self, data: bytes) -> Iterator[Samples]:
        """Yield the mono float32 samples at 16 kHz that ``data`` completes, in blocks of at most 1 s."""
        if self.coding == "s16le":
            data = self._half + data
            whole = len(data) // 2 * 2
            data, self._half = data[:whole], data[whole:]
        size = self.rate * (2 if self.coding == "s16le" else 1)
        for first in range(0, len(data), size):
            block = _decoded(data[first : first + size], self.coding)
            if self._resampler is not None:
                block = self._resampler.feed(block)
            yield block

    def flush(self) -> Samples:
        """Return the samples still in the resampler. Audio fed later starts with a new resampler."""
        if self._resampler is None:
            return np.empty(0, np.float32)
        rest = self._resampler.finish()
        self._resampler = self._fresh()
        return rest

    def _fresh(self) -> LiveResampler | None:
        return None if self.rate == SAMPLE_RATE else LiveResampler(self.rate, SAMPLE_RATE)


def _decoded(data: bytes, coding: Coding) -> Samples:
    if coding == "s16le":
        return np.frombuffer(data, "<i2").astype(np.float32) / _FULL
    table = _MU_LAW if coding == "mulaw" else _A_LAW
    return table[np.frombuffer(data, np.uint8)]


def _mu_law() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)
    steps = ((code & 15).astype(np.int32) * 8 + 132) << (code >> 4 & 7)
    return _signed(steps - 132, negative=code >= 128)


def _a_law() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent = (code >> 4 & 7).astype(np.int32)
    steps = (code & 15).astype(np.int32) * 16 + np.where(exponent, 264, 8)
    return _signed(steps << np.maximum(exponent - 1, 0), negative=code < 128)


def _signed(steps: NDArray[np.int32], *, negative: NDArray[np.bool_]) -> Samples:
    return np.where(negative, -steps, steps).astype(np.float32) / _FULL


_MU_LAW: Final = _mu_law()
_A_LAW: Final = _a_law()
