"""Live audio without a header to the 16-kHz samples that models hear, however its bytes are parted."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import numpy as np
import soxr
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.audio import SAMPLE_RATE, Samples

Coding: TypeAlias = Literal["s16le", "mulaw", "alaw"]
_FULL: Final = np.float32(32_768)


class PcmStream:
    """One stream, mono.

    Args:
        coding: of its samples; the laws are those of G.711.
        rate: in Hz.
    """

    def __init__(self, coding: Coding, rate: int) -> None:
        self.coding = coding
        self.rate = rate
        self._resampler = self._fresh()

    def check(self, data: bytes) -> None:
        """Raises RequestError if it ends within a sample."""
        if self.coding == "s16le" and len(data) % 2:
            raise RequestError(
                f"audio has {len(data)} bytes; samples of PCM16 have two each", param="audio"
            )

    def feed(self, data: bytes) -> Iterator[Samples]:
        """What it adds, in blocks of a second at most."""
        self.check(data)
        size = self.rate * (2 if self.coding == "s16le" else 1)
        for first in range(0, len(data), size):
            block = _decoded(data[first : first + size], self.coding)
            if self._resampler is not None:
                block = self._resampler.resample_chunk(block)
            yield block

    def flush(self) -> Samples:
        """What the resampler has kept back. What comes after begins anew."""
        if self._resampler is None:
            return np.empty(0, np.float32)
        rest: Samples = self._resampler.resample_chunk(np.empty(0, np.float32), last=True)
        self._resampler = self._fresh()
        return rest

    def _fresh(self) -> soxr.ResampleStream | None:
        if self.rate == SAMPLE_RATE:
            return None
        return soxr.ResampleStream(self.rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")


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
