"""Matrices of 8-bit and 4-bit floats with scales: FP8, MXFP4 and similar formats.

The GPU executor multiplies E4M3 and MXFP4 as they are stored. No other kernel multiplies such floats: their
values are looked up, scaled and rounded to a dense kind. FP8 has 3 bits after the binary point and FP4 one,
bfloat16 has 7: only the scale's own digits are rounded, while int8 would lose every value far below its
group's largest.

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats (MX) Specification 1.0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from galley.formats.float_tables import E4M3, FP4, FP8
from galley.formats.packed_integers import check_finite
from galley.formats.safetensors import StoredTensor
from galley.formats.stored import Bytes, Matrix, as_floats, checked, read_floats
from galley.formats.weights import (
    DENSE_KINDS,
    FP8_KIND,
    MXFP4_GROUP,
    DenseWeight,
    Floats,
    Fp8Weight,
    Mxfp4Weight,
    TensorInfo,
    WeightKind,
    WeightType,
    mxfp4_kind,
)

_CHUNK_VALUES: Final = 1 << 20


def e8m0(tensor: StoredTensor) -> Floats:
    """Return scales that are powers of two, stored as the exponent plus 127; 255 is NaN.

    Raises:
        CheckpointError: one is NaN.
    """
    codes = tensor.data.reshape(tensor.shape)
    values = np.ldexp(np.float32(1), codes.astype(np.int32) - 127).astype(np.float32)
    return checked(tensor, np.where(codes == 255, np.float32(np.nan), values))


def scales_of(tensor: StoredTensor) -> Floats:
    """Read scales of any type in which formats store them."""
    if tensor.dtype in ("U8", "F8_E8M0"):
        return e8m0(tensor)
    if tensor.dtype in FP8:
        return checked(tensor, FP8[tensor.dtype][tensor.data].reshape(tensor.shape))
    return read_floats(tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledFloats:
    """A matrix [outputs, depth] of values from a table, each times the scale of its block.

    Attributes:
        name: name of the tensor in the model.
        weight: the tensor with the codes.
        table: the value of each code: of a byte if it has 256 of them, else of half a byte, low half first.
        shape: (outputs, depth).
        block: rows and columns that share a scale; the last ones may be shorter.
        scales: reads float32 [blocks of rows, blocks of columns].
        floats: element type of the values, if they are converted to floats.
        stored: name of the stored format, for users.
        keeps_floats: whether E4M3 and MXFP4 are kept as they are stored.
        powers_of_two: whether scales are powers of two, of MXFP4_GROUP columns each.
    """

    name: str
    weight: StoredTensor
    table: Floats
    shape: tuple[int, int]
    block: tuple[int, int]
    scales: Callable[[], Floats]
    floats: WeightType
    stored: str
    keeps_floats: bool = False
    powers_of_two: bool = False

    def matrix(self, change: str = "") -> Matrix:
        """Return the matrix with a description of its conversion; ``change`` replaces the default one."""
        if self.keeps_floats and self.table is E4M3:
            group = 0 if self.block[1] >= self.shape[1] else self.block[1]
            info = TensorInfo(self.shape, WeightKind(FP8_KIND, group, "F32"))
            return Matrix(info, self.read_fp8, self.stored, self.weight.data.nbytes)
        if self.keeps_floats and self.table is FP4 and self.powers_of_two:
            info = TensorInfo(self.shape, mxfp4_kind(self.shape[1]))
            return Matrix(info, self.read_mxfp4, self.stored, self.weight.data.nbytes)
        exact = "no value changes" if self.floats == "F32" else "values times scales are rounded"
        info = TensorInfo(self.shape, DENSE_KINDS[self.floats])
        return Matrix(info, self.read, self.stored, self.weight.data.nbytes, change or exact)

    def read(self) -> DenseWeight:
        """Return values times scales.

        Raises:
            CheckpointError: a scale or value is not finite.
        """
        outputs, depth = self.shape
        codes, scales = self.weight.data.reshape(outputs, -1), self.scales()
        parts = []
        step = max(1, _CHUNK_VALUES // depth)
        for first in range(0, outputs, step):
            rows = np.arange(first, min(outputs, first + step))
            spread = scales[rows // self.block[0]].repeat(self.block[1], axis=1)[:, :depth]
            with np.errstate(over="ignore", invalid="ignore"):
                values = self._values(codes[rows])[:, :depth] * spread
            if not np.isfinite(values).all():
                raise self.weight.wrong("contains values that are infinite or NaN")
            parts.append(as_floats(values, self.floats))
        dense = DenseWeight(self.name, self.floats, self.shape, np.concatenate(parts))
        return check_finite(self.weight, dense)

    def read_fp8(self) -> Fp8Weight:
        """Return the stored codes, and the scales spread over rows.

        Raises:
            CheckpointError: a scale or value is not finite.
        """
        outputs, depth = self.shape
        codes = self.weight.data.reshape(outputs, depth)
        if ((codes & 0x7F) == 0x7F).any():
            raise self.weight.wrong("contains values that are infinite or NaN")
        scales = self.scales()[np.arange(outputs) // self.block[0]]
        return Fp8Weight(self.name, codes, min(self.block[1], depth), scales)

    def read_mxfp4(self) -> Mxfp4Weight:
        """Return the stored codes, one in each byte.

        Raises:
            CheckpointError: a scale or value is not finite.
        """
        outputs, depth = self.shape
        scales = self.scales()
        with np.errstate(over="ignore"):
            if not np.isfinite(scales * self.table.max()).all():
                raise self.weight.wrong("contains values that are infinite or NaN")
        codes = _halves(self.weight.data.reshape(outputs, -1))[:, :depth]
        return Mxfp4Weight(self.name, codes, min(MXFP4_GROUP, depth), scales)

    def _values(self, codes: Bytes) -> Floats:
        values: Floats = self.table[_halves(codes) if len(self.table) < 256 else codes]
        return values


def _halves(codes: Bytes) -> Bytes:
    """Return the two codes of each byte [rows, bytes], low half first, one in a byte."""
    return np.stack((codes & 15, codes >> 4), axis=-1).reshape(len(codes), -1)
