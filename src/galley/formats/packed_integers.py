"""Integers of 1 to 8 bits in the words into which GPTQ, AWQ and compressed-tensors pack them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from galley.formats.safetensors import StoredTensor
from galley.formats.stored import Bytes, Matrix, as_floats
from galley.formats.weights import (
    DENSE_KINDS,
    INT4_MIDDLE,
    DenseWeight,
    Floats,
    IntWeight,
    TensorInfo,
    Weight,
    WeightKind,
    WeightType,
)

_CHUNK_VALUES: Final = 1 << 20

_INT8_MIDDLE: Final = 128


def unpack(words: npt.NDArray[np.int32], bits: int, count: int) -> Bytes:
    """Unpack ``count`` integers of each row: a stream of bits, lowest first, words one after another.

    Args:
        words: [rows, words].
        bits: bits of an integer, 1 to 8.
        count: integers in a row.
    """
    rows = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return rows[:, :count].copy()
    made = np.empty((len(rows), count), np.uint8)
    step = max(1, _CHUNK_VALUES // max(1, rows.shape[1]))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        if bits == 4:
            values = np.stack((part & 15, part >> 4), axis=-1).reshape(len(part), -1)
        else:
            stream = np.unpackbits(part, axis=1, count=count * bits, bitorder="little")
            places = (1 << np.arange(bits)).astype(np.uint8)
            values = (stream.reshape(len(part), count, bits) * places).sum(2, dtype=np.uint8)
        made[first : first + step] = values[:, :count]
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedIntegers:
    """A matrix [outputs, depth] of unsigned integers, not yet unpacked: ``(q - zero) * scale``.

    Attributes:
        name: name of the tensor in the model.
        weight: the tensor with the integers.
        bits: bits of an integer, 1 to 8.
        shape: (outputs, depth).
        group: columns that share a scale.
        scale_type: element type that holds the scales exactly.
        q: unpacks them: uint8 [outputs, depth].
        scales: reads float32 [outputs, groups].
        zeros: reads uint8 [outputs, groups]; None where all are ``2 ** (bits - 1)``.
        order: group of each column, where a group's columns are not adjacent (GPTQ's act-order).
        floats: element type of the values where no integer kind can hold them.
    """

    name: str
    weight: StoredTensor
    bits: int
    shape: tuple[int, int]
    group: int
    scale_type: WeightType
    q: Callable[[], Bytes]
    scales: Callable[[], Floats]
    zeros: Callable[[], Bytes] | None
    order: npt.NDArray[np.int32] | None
    floats: WeightType

    @property
    def kind(self) -> WeightKind:
        """Weight kind that :meth:`read` returns."""
        group = 0 if self.group >= self.shape[1] else self.group
        if self.order is not None:
            return DENSE_KINDS[self.floats]
        if self.bits <= 4:
            return WeightKind("int4", group, self.scale_type, self.zeros is not None)
        if self.zeros is None:
            return WeightKind("int8", group, self.scale_type)
        return WeightKind("int8", group, "F32", minima=True)

    def matrix(self) -> Matrix:
        """Return the matrix with a description of its conversion."""
        stored, change = f"int{self.bits}", ""
        if self.order is not None:
            stored += " in the order of their activations (desc_act, g_idx)"
            exact = "no value changes" if self.floats == "F32" else "values are rounded"
            change = f"{exact}; a checkpoint with desc_act false stays integers"
        elif self.bits not in (4, 8):
            change = "no value changes"
        values = self.shape[0] * self.shape[1]
        info = TensorInfo(self.shape, self.kind)
        return Matrix(info, self.read, stored, values * self.bits // 8, change)

    def read(self) -> Weight:
        """Unpack the matrix to the weight kind :attr:`kind`.

        Raises:
            CheckpointError: a scale is not finite, or a value is too large for :attr:`floats`.
        """
        q, scales = self.q(), self.scales()
        zeros = None if self.zeros is None else self.zeros()
        if self.order is not None:
            return self._dense(q, scales, zeros, self.order)
        name, middle = self.name, 1 << (self.bits - 1)
        if self.bits <= 4:
            up = np.uint8(INT4_MIDDLE - middle)
            moved = None if zeros is None else zeros + up
            return IntWeight(name, 4, q + up, self.group, scales, moved, self.scale_type)
        signed = (q + np.uint8(_INT8_MIDDLE - middle) ^ _INT8_MIDDLE).view(np.int8)
        if zeros is None:
            return IntWeight(name, 8, signed, self.group, scales, None, self.scale_type)
        minima = (np.float32(middle) - zeros) * scales
        return IntWeight(name, 8, signed, self.group, scales, None, "F32", minima)

    def _dense(
        self, q: Bytes, scales: Floats, zeros: Bytes | None, order: npt.NDArray[np.int32]
    ) -> DenseWeight:
        parts = []
        step = max(1, _CHUNK_VALUES // self.shape[1])
        for first in range(0, len(q), step):
            rows = slice(first, first + step)
            zero = float(1 << (self.bits - 1)) if zeros is None else zeros[rows][:, order]
            values = (q[rows].astype(np.float32) - zero) * scales[rows][:, order]
            parts.append(as_floats(values.astype(np.float32), self.floats))
        dense = DenseWeight(self.name, self.floats, self.shape, np.concatenate(parts))
        return check_finite(self.weight, dense)


def check_finite(tensor: StoredTensor, weight: DenseWeight) -> DenseWeight:
    """Return ``weight``; raise CheckpointError about ``tensor`` if it holds an infinity or NaN."""
    bits: Any = weight.data.view(np.uint32 if weight.dtype == "F32" else np.uint16)
    exponent = {"F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}[weight.dtype]
    if (bits & exponent == exponent).any():
        raise tensor.wrong(f"contains values that are infinite, NaN or too large for {weight.kind}")
    return weight


def column_groups(
    g_idx: StoredTensor, values: npt.NDArray[np.int32], group: int, groups: int
) -> npt.NDArray[np.int32] | None:
    """Return the group of each column; None where each group's columns are adjacent and in order.

    Raises:
        CheckpointError: a column names a group that does not exist.
    """
    if values.min() < 0 or values.max() >= groups:
        raise g_idx.wrong(
            f"refers to groups {values.min()} to {values.max()}, but there are {groups}"
        )
    columns = np.arange(len(values)) // group
    return None if np.array_equal(values, columns) else values
