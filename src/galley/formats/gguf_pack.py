"""Typed weights -> block types of GGUF tensors, exactly: the inverse of :mod:`galley.formats.gguf_blocks`.

A matrix whose values no type holds exactly is refused: nothing is rounded.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from galley.errors import UnsupportedModel
from galley.formats.gguf_writer import Bytes
from galley.formats.values import to_float32
from galley.formats.weights import INT4_MIDDLE, DenseWeight, Floats, IntWeight, TensorInfo, Weight
from galley.types.weight_dtypes import WEIGHT_DTYPES

BLOCK: Final = 32
"""Values per block of Q8_0, Q4_0 and Q4_1."""

_CHUNK_VALUES: Final = 1 << 22


def type_of(name: str, info: TensorInfo) -> str:
    """Return the GGUF type to which a tensor is converted.

    Raises:
        UnsupportedModel: no type holds its integers; names the tensor.
    """
    shape, kind = info
    if len(shape) == 1:
        return "F32"  # the only vector type that llama.cpp adds and multiplies with
    if kind.is_dense:
        return WEIGHT_DTYPES[kind.name].element
    depth = shape[-1]
    offset = kind.zeros or kind.minima
    if (
        not kind.is_integer
        or depth % BLOCK
        or kind.group % BLOCK
        or (kind.name == "int8" and offset)
    ):
        raise UnsupportedModel(
            f"tensor {name} is {kind} with {depth} columns; GGUF files support int4, or int8 without zero "
            f"points, in groups of multiples of {BLOCK} columns"
        )
    if kind.name == "int8":
        return "Q8_0"
    return "Q4_1" if offset else "Q4_0"


def packed(weight: Weight) -> Bytes:
    """Return the bytes of a tensor in the type of :func:`type_of`, [rows, bytes of a row].

    Raises:
        UnsupportedModel: float16 does not hold a scale or a minimum; names the tensor.
    """
    if isinstance(weight, DenseWeight):
        return _dense(weight)
    assert isinstance(weight, IntWeight)
    outputs, depth = weight.shape
    step = max(1, _CHUNK_VALUES // depth)
    parts = [_blocks(weight, slice(i, i + step)) for i in range(0, outputs, step)]
    return np.concatenate(parts)


def _dense(weight: DenseWeight) -> Bytes:
    if len(weight.shape) > 1 or weight.dtype == "F32":
        return weight.data.reshape(weight.shape[0], -1)
    return to_float32(weight).view(np.uint8).reshape(weight.shape[0], -1)


def _blocks(weight: IntWeight, rows: slice) -> Bytes:
    """Pack some rows: for each block its scale, its minimum if it has one, and its integers."""
    q = weight.q[rows]
    parts = [_halves(weight, weight.scales[rows], "scale")]
    if weight.minima is not None:
        parts.append(_halves(weight, weight.minima[rows], "minimum"))
    elif weight.zeros is not None:
        minima = -weight.zeros[rows].astype(np.float32) * weight.scales[rows]
        parts.append(_halves(weight, minima, "minimum (zero point times scale)"))
    elif weight.bits == 4:
        assert INT4_MIDDLE == 8  # as in Q4_0
    blocks = q.reshape(-1, BLOCK)
    if weight.bits == 4:
        half = BLOCK // 2
        blocks = blocks[:, :half] | blocks[:, half:] << 4
    whole: Bytes = np.concatenate([*parts, blocks.view(np.uint8)], axis=1)
    return whole.reshape(len(q), -1)


def _halves(weight: IntWeight, values: Floats, what: str) -> Bytes:
    """Return [blocks, 2]: one float16 for each block of each row."""
    with np.errstate(over="ignore"):
        halves: npt.NDArray[np.float16] = values.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), values):
        raise UnsupportedModel(
            f"tensor {weight.name} has a {what} that float16, as used by GGUF, cannot represent exactly; "
            "quantize the original checkpoint to GGUF"
        )
    count = weight.shape[1] // BLOCK
    spread = np.repeat(halves, -(-count // halves.shape[1]), axis=1)[:, :count]
    return np.ascontiguousarray(spread).view(np.uint8).reshape(-1, 2)
