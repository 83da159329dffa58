"""The values of 8-bit and 4-bit floats, by their bits.

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats (MX) Specification 1.0.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from galley.formats.weights import Floats


def _table(exponent_bits: int, mantissa_bits: int, bias: int) -> Floats:
    """Return the values of all codes, sign first, without infinities and NaN."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    whole = np.where(exponent == 0, 0, 1 << mantissa_bits)
    power = np.maximum(exponent, 1) - bias - mantissa_bits
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    values: Floats = (sign * np.ldexp(1.0 * (whole + mantissa), power)).astype(np.float32)
    return values


def _e4m3() -> Floats:
    table = _table(4, 3, 7)
    table[[0x7F, 0xFF]] = np.nan
    return table


def _e5m2() -> Floats:
    table = _table(5, 2, 15)
    table[[0x7C, 0xFC]] = np.inf
    table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return table


E4M3: Final = _e4m3()
"""Value of each byte of the FP8 type that weights have, NaN included."""

FP8: Final[Mapping[str, Floats]] = {"F8_E4M3": E4M3, "F8_E5M2": _e5m2()}
"""Element type -> value of each byte."""

FP4: Final = _table(2, 1, 1)
"""E2M1: value of each half byte."""
