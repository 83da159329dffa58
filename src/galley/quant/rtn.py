"""Round to nearest: each weight becomes the closest integer step, without calibration."""

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from galley.errors import UnsupportedModel
from galley.formats.values import as_bf16, to_float32
from galley.formats.weights import INT4_MIDDLE, DenseWeight, Floats, IntWeight, WeightKind
from galley.types.weight_dtypes import WEIGHT_DTYPES

GROUPS: Final = (128, 64, 32)
"""Possible numbers of columns that share a scale, largest first."""
_CHUNK_ELEMENTS: Final = 1 << 22


class Quantize(Protocol):
    """Rounds a matrix to nearest."""

    def __call__(self, weight: DenseWeight, *, group: int = 0) -> IntWeight:
        """Return the matrix in groups of this many columns; 0: see :func:`default_group`."""
        ...


def not_finite(weight: DenseWeight | IntWeight) -> UnsupportedModel:
    """Return the error for a tensor that integers or float16 cannot represent."""
    return UnsupportedModel(
        f"tensor {weight.name} contains values that are infinite, NaN, of too wide a range for integers or "
        "too large for float16; set weight_dtype to bf16 or float32"
    )


def quantize_int8(weight: DenseWeight, *, group: int = 0) -> IntWeight:
    """Quantize to int8 with one bfloat16 scale for each output and group.

    The largest magnitude of a group becomes 127.

    Args:
        weight: a matrix [outputs, depth].
        group: number of columns that share a scale; 0: see :func:`default_group`.

    Raises:
        UnsupportedModel: a value is infinite or NaN.
    """
    return _in_bytes(weight, 8, group)


def quantize_int7(weight: DenseWeight, *, group: int = 0) -> IntWeight:
    """Quantize as :func:`quantize_int8`, but the largest magnitude of a group becomes 63."""
    return _in_bytes(weight, 7, group)


def _in_bytes(weight: DenseWeight, bits: int, group: int) -> IntWeight:
    values = _finite(weight, to_float32(weight))
    depth = values.shape[1]
    group = group or default_group(depth)
    most = np.float32((1 << (bits - 1)) - 1)
    q = np.empty(values.shape, np.int8)
    scales = np.empty((len(values), -(-depth // group)), np.float32)
    for rows in _chunks(values):
        grouped = _grouped(values[rows], group)
        scale = as_bf16(np.abs(grouped).max(axis=2) / most)
        steps = np.rint(grouped * _inverse(scale)[:, :, None])
        q[rows] = steps.reshape(len(grouped), -1)[:, :depth]
        scales[rows] = scale
    return IntWeight(weight.name, bits, q, group, scales, None, "BF16")


def quantize_int4(weight: DenseWeight, *, group: int = 0, symmetric: bool = True) -> IntWeight:
    """Quantize to int4 with one bfloat16 scale for each output and group.

    Args:
        weight: a matrix [outputs, depth].
        group: number of columns that share a scale; 0: see :func:`default_group`.
        symmetric: the value of largest magnitude becomes -8, so the range is used up to its end; False:
            with a zero point, a group's least and greatest value are the ends of the range.

    Raises:
        UnsupportedModel: a value is infinite or NaN, or values lie too far apart.
    """
    values = _finite(weight, to_float32(weight))
    depth = values.shape[1]
    group = group or default_group(depth)
    q = np.empty(values.shape, np.uint8)
    scales = np.empty((len(values), -(-depth // group)), np.float32)
    zeros = None if symmetric else np.empty(scales.shape, np.uint8)
    for rows in _chunks(values):
        grouped = _grouped(values[rows], group)
        scale, zero = _symmetric(grouped) if symmetric else _asymmetric(grouped)
        steps = np.rint(grouped * _inverse(scale)[:, :, None]) + zero[:, :, None]
        q[rows] = np.clip(steps, 0, 15).reshape(len(grouped), -1)[:, :depth]
        scales[rows] = scale
        if zeros is not None:
            zeros[rows] = zero
    return IntWeight(weight.name, 4, q, group, _finite(weight, scales), zeros, "BF16")


def default_group(depth: int) -> int:
    """Return the largest of GROUPS that divides the depth, or the smallest if none does."""
    return next((g for g in GROUPS if depth % g == 0), GROUPS[-1])


def rounded_kind(weight_dtype: str, depth: int) -> WeightKind:
    """Return the weight type of a dense matrix of ``depth`` columns under the setting ``weight_dtype``.

    The setting is one of :data:`galley.types.weight_dtypes.RUNNABLE`.
    """
    known = WEIGHT_DTYPES[weight_dtype]
    group = default_group(depth) if known.grouped else 0
    return WeightKind(weight_dtype, group if group < depth else 0, known.scales)


QUANTIZERS: Final[Mapping[str, Quantize]] = {
    "int8": quantize_int8,
    "int7": quantize_int7,
    "int4": quantize_int4,
}
"""Weight type -> how a dense matrix is rounded to it when a model is loaded."""


def _grouped(values: Floats, group: int) -> Floats:
    """Return [outputs, groups, columns]; the last group is padded with zeros."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % group)))
    return padded.reshape(len(values), -1, group)


def _symmetric(grouped: Floats) -> tuple[Floats, Floats]:
    at = np.abs(grouped).argmax(axis=2)[:, :, None]
    extreme = np.take_along_axis(grouped, at, axis=2)[:, :, 0]
    scale = as_bf16(extreme / np.float32(-8))
    return scale, np.full_like(scale, INT4_MIDDLE)


def _asymmetric(grouped: Floats) -> tuple[Floats, Floats]:
    low = np.minimum(grouped.min(axis=2), 0)
    # abs: if all values are zeros, the sign of the zero that numpy's maximum returns is undefined.
    span: Floats = np.abs(np.maximum(grouped.max(axis=2), 0) - low).astype(np.float32)
    scale = as_bf16(span / np.float32(15))
    return scale, np.clip(np.rint(-low * _inverse(scale)), 0, 15)


def _finite(weight: DenseWeight, values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise not_finite(weight)
    return values


def _inverse(scale: Floats) -> Floats:
    """Return 1 / scale, or 0 where the scale is too small to divide by: those weights become zeros."""
    usable = np.abs(scale) > 1e-30
    return np.where(usable, 1 / np.where(usable, scale, 1), 0).astype(np.float32)


def _chunks(values: Floats) -> list[slice]:
    """Return row ranges that keep temporary arrays small."""
    rows = max(1, _CHUNK_ELEMENTS // max(1, values.shape[1]))
    return [slice(i, i + rows) for i in range(0, len(values), rows)]
