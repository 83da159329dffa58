"""Block types of GGUF tensors -> canonical typed weights, exactly.

The layouts: ggml's ``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``. Each block type has
small integers with a scale, and in some types a minimum, for each group: an :class:`IntWeight` whose
float32 values are those that ggml computes, bit for bit. No value is rounded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from galley.formats.gguf_file import TensorType
from galley.formats.weights import (
    DENSE_KINDS,
    SUPER,
    DenseWeight,
    Floats,
    IntWeight,
    Nested,
    ScaleType,
    WeightKind,
    WeightType,
)

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]
Integers = npt.NDArray[np.int8] | npt.NDArray[np.uint8]

CHUNK_VALUES: Final = 1 << 20
"""Number of values unpacked at a time, to keep temporaries small."""

_IQ4: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""Values of IQ4_NL and IQ4_XS."""

_E2M1: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of MXFP4; its scales are halved to compensate."""


class Groups(NamedTuple):
    """Unpacked blocks: integers [blocks, values], scales and minima [blocks, groups].

    Scales and minima of K types are integers as well, scaled by ``unit`` and ``least_unit`` [blocks, 1].
    """

    q: Integers
    scales: npt.NDArray[Any]
    minima: npt.NDArray[Any] | None = None
    unit: Halves | None = None
    least_unit: Halves | None = None


@dataclass(frozen=True, slots=True)
class BlockKind:
    """How the blocks of a type are converted.

    Attributes:
        bits: 8 or 4: the canonical integers that hold the block's.
        group: values that share a scale.
        scale_type: type that holds scales and minima exactly.
        unpack: [blocks, bytes] -> the integers.
        minima: whether each group has a minimum.
    """

    bits: int
    group: int
    scale_type: ScaleType
    unpack: Callable[[Bytes], Groups]
    minima: bool = False


def kind_of(type_name: str, depth: int) -> WeightKind:
    """Return the canonical kind of a matrix of ``depth`` columns, or of a tensor of floats."""
    if type_name in DENSE_KINDS:
        return DENSE_KINDS[type_name]
    block = BLOCK_KINDS[type_name]
    group = 0 if block.group >= depth else block.group
    return WeightKind(f"int{block.bits}", group, block.scale_type, False, block.minima)


def weight_of(
    name: str, type: TensorType, shape: tuple[int, ...], data: Bytes
) -> DenseWeight | IntWeight:
    """Return the typed weight of a tensor of this ``shape``, row-major, whose bytes are ``data``."""
    if type.name in DENSE_KINDS:
        return DenseWeight(name, cast(WeightType, type.name), shape, data.reshape(-1))
    block = BLOCK_KINDS[type.name]
    outputs, depth = shape
    rows = data.reshape(outputs, -1)
    q: Integers = np.empty(shape, np.int8) if block.bits == 8 else np.empty(shape, np.uint8)
    nested = block.scale_type == "F16xI8"
    scales = np.empty((outputs, depth // block.group), np.int8 if nested else np.float32)
    minima = np.empty_like(scales) if block.minima else None
    units = np.empty((2, outputs, -(-depth // SUPER)), np.float16)
    step = max(1, CHUNK_VALUES // depth)
    for first in range(0, outputs, step):
        part = slice(first, first + step)
        with np.errstate(all="ignore"):  # the caller checks for scales that are not finite
            found = block.unpack(rows[part].reshape(-1, type.bytes))
        q[part] = found.q.reshape(-1, depth)
        scales[part] = found.scales.reshape(-1, scales.shape[1])
        if minima is not None and found.minima is not None:
            minima[part] = found.minima.reshape(-1, scales.shape[1])
        for i, unit in enumerate((found.unit, found.least_unit)):
            if unit is not None:
                units[i, part] = unit.reshape(-1, units.shape[2])
    made = (name, block.bits, q, block.group)
    if not nested:
        return IntWeight(*made, scales, None, block.scale_type, minima)
    of_scales = Nested(scales, units[0])
    of_minima = None if minima is None else Nested(minima, units[1])
    with np.errstate(all="ignore"):
        floats = of_scales.floats(block.group)
        least = None if of_minima is None else of_minima.floats(block.group)
    return IntWeight(*made, floats, None, block.scale_type, least, (of_scales, of_minima))


def _unit(blocks: Bytes, at: int) -> Halves:
    """Return [blocks, 1]: the float16 at byte ``at`` of each block."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _half(blocks: Bytes, at: int) -> Floats:
    """Return [blocks, 1]: the float16 at byte ``at`` of each block, as float32."""
    return _unit(blocks, at).astype(np.float32)


def _planes(packed: Bytes, width: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Repeat each run of ``width`` bytes ``len(shifts)`` times, shifted right and masked."""
    runs = packed.reshape(len(packed), -1, 1, width)
    steps = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    made: Bytes = ((runs >> steps) & np.uint8(mask)).reshape(len(packed), -1)
    return made


def _nibbles(packed: Bytes, width: int = 16) -> Bytes:
    return _planes(packed, width, (0, 4), 15)


def _signed(values: npt.NDArray[Any], zero: int) -> npt.NDArray[np.int8]:
    made: npt.NDArray[np.int8] = values.view(np.int8) - np.int8(zero)
    return made


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Return [blocks, 32]: bit i of the four bytes at ``at``, as 0 or 16."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    made: Bytes = bits << np.uint8(4)
    return made


def _q8_0(b: Bytes) -> Groups:
    return Groups(np.ascontiguousarray(b[:, 2:]).view(np.int8), _half(b, 0))


def _q4_0(b: Bytes) -> Groups:
    return Groups(_nibbles(b[:, 2:]), _half(b, 0))


def _q4_1(b: Bytes) -> Groups:
    return Groups(_nibbles(b[:, 4:]), _half(b, 0), _half(b, 2))


def _q5_0(b: Bytes) -> Groups:
    return Groups(_signed(_nibbles(b[:, 6:]) | _fifth_bits(b, 2), 16), _half(b, 0))


def _q5_1(b: Bytes) -> Groups:
    q = _nibbles(b[:, 8:]) | _fifth_bits(b, 4)
    return Groups(q.view(np.int8), _half(b, 0), _half(b, 2))


def _q2_k(b: Bytes) -> Groups:
    q = _planes(b[:, 16:80], 32, (0, 2, 4, 6), 3)
    return Groups(q, b[:, :16] & 15, b[:, :16] >> 4, _unit(b, 80), -_unit(b, 82))


def _q3_k(b: Bytes) -> Groups:
    low = _planes(b[:, 96:104], 8, (0, 4), 15)
    high = _planes(b[:, 104:108], 4, (0, 2, 4, 6), 3)
    scales = _signed(low | (high << 4), 32)
    # q - 4 where the mask's bit is clear; stored with 8 for zero.
    bits = _planes(b[:, :32], 32, tuple(range(8)), 1)
    low_bits = _planes(b[:, 32:96], 32, (0, 2, 4, 6), 3)
    q: Bytes = low_bits + (bits << np.uint8(2)) + np.uint8(4)
    return Groups(q, scales, unit=_unit(b, 108))


def _k_scales(b: Bytes) -> tuple[Bytes, Bytes, Halves, Halves]:
    """Return scales and minima of Q4_K and Q5_K: six bits each, eight of both in twelve bytes."""
    low, middle, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate([low & 63, (both & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([middle & 63, (both >> 4) | ((middle >> 2) & 48)], axis=1)
    return scales, minima, _unit(b, 0), -_unit(b, 2)


def _q4_k(b: Bytes) -> Groups:
    return Groups(_nibbles(b[:, 16:], 32), *_k_scales(b))


def _q5_k(b: Bytes) -> Groups:
    bits = _planes(b[:, 16:48], 32, tuple(range(8)), 1)
    return Groups((_nibbles(b[:, 48:], 32) | (bits << 4)).view(np.int8), *_k_scales(b))


def _q6_k(b: Bytes) -> Groups:
    low = _planes(b[:, :128], 64, (0, 4), 15)
    high = _planes(b[:, 128:192], 32, (0, 2, 4, 6), 3)
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return Groups(_signed(low | (high << 4), 32), scales, unit=_unit(b, 208))


def _iq4_nl(b: Bytes) -> Groups:
    return Groups(_IQ4[_nibbles(b[:, 2:])], _half(b, 0))


def _iq4_xs(b: Bytes) -> Groups:
    low = _planes(b[:, 4:8], 1, (0, 4), 15)
    high = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = _signed(low | ((high & 3).astype(np.uint8) << 4), 32)
    return Groups(_IQ4[_nibbles(b[:, 8:])], scales, unit=_unit(b, 0))


def _mxfp4(b: Bytes) -> Groups:
    scales = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128).astype(np.float32)
    return Groups(_E2M1[_nibbles(b[:, 1:])], scales)


BLOCK_KINDS: Final[Mapping[str, BlockKind]] = {
    "Q4_0": BlockKind(4, 32, "F16", _q4_0),
    "Q4_1": BlockKind(4, 32, "F16", _q4_1, minima=True),
    "Q5_0": BlockKind(8, 32, "F16", _q5_0),
    "Q5_1": BlockKind(8, 32, "F16", _q5_1, minima=True),
    "Q8_0": BlockKind(8, 32, "F16", _q8_0),
    "Q2_K": BlockKind(4, 16, "F16xI8", _q2_k, minima=True),
    "Q3_K": BlockKind(4, 16, "F16xI8", _q3_k),
    "Q4_K": BlockKind(4, 32, "F16xI8", _q4_k, minima=True),
    "Q5_K": BlockKind(8, 32, "F16xI8", _q5_k, minima=True),
    "Q6_K": BlockKind(8, 16, "F16xI8", _q6_k),
    "IQ4_NL": BlockKind(8, 32, "F16", _iq4_nl),
    "IQ4_XS": BlockKind(8, 32, "F16xI8", _iq4_xs),
    "MXFP4": BlockKind(8, 32, "BF16", _mxfp4),
}
"""Name of a block type -> how it is converted."""
