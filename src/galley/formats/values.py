"""Conversions between typed weights and their values as float32."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from galley.formats.float_tables import E4M3, FP4
from galley.formats.weights import (
    INT4_MIDDLE,
    DenseWeight,
    Floats,
    IntWeight,
    Mxfp4Weight,
    SmallFloats,
    WeightType,
)

_CHUNK_VALUES: Final = 1 << 20


def to_float32(weight: DenseWeight) -> Floats:
    """Return the tensor's values, in its shape."""
    if weight.dtype == "F32":
        values = weight.data.view(np.float32)
    elif weight.dtype == "F16":
        values = weight.data.view(np.float16).astype(np.float32)
    else:
        values = (weight.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.reshape(weight.shape)


def bf16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even. ``values`` are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_bf16(values: Floats) -> Floats:
    """Round each value to the nearest bfloat16, as float32. ``values`` are finite."""
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def as_dense(
    name: str, dtype: WeightType, values: Floats, shape: tuple[int, ...] | None = None
) -> DenseWeight:
    """Round values to a tensor of the type; ``shape`` is given if it differs from theirs.

    The values are finite; one that is too large for float16 becomes infinite.
    """
    if dtype == "BF16":
        kept: npt.NDArray[Any] = bf16_bits(values)
    else:
        kept = np.ascontiguousarray(values, dtype=np.float16 if dtype == "F16" else np.float32)
    raw = kept.reshape(-1).view(np.uint8)
    return DenseWeight(name, dtype, values.shape if shape is None else shape, raw)


def dequantize(weight: IntWeight | SmallFloats) -> Floats:
    """Return [outputs, depth]: (q - zero) * scale, or q * scale + minimum; row by row to save memory.

    E4M3 and E2M1 are multiplied by their scales.
    """
    values = np.empty(weight.shape, np.float32)
    step = max(1, _CHUNK_VALUES // max(1, weight.shape[1]))
    for first in range(0, weight.shape[0], step):
        rows = slice(first, first + step)
        values[rows] = _values_of(weight, rows)
    return values


def _values_of(weight: IntWeight | SmallFloats, rows: slice) -> Floats:
    depth = weight.shape[1]

    def spread(values: npt.NDArray[np.generic]) -> Floats:
        return np.repeat(values[rows].astype(np.float32), weight.group, axis=1)[:, :depth]

    if isinstance(weight, SmallFloats):
        table = FP4 if isinstance(weight, Mxfp4Weight) else E4M3
        return table[weight.codes[rows]] * spread(weight.scales)
    q = weight.q[rows].astype(np.float32)
    if weight.minima is not None:
        return q * spread(weight.scales) + spread(weight.minima)
    middle = INT4_MIDDLE if weight.bits == 4 else 0
    zeros = middle if weight.zeros is None else spread(weight.zeros)
    return (q - zeros) * spread(weight.scales)
