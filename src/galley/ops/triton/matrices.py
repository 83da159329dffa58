"""Matrices in the layouts of ``kernels/linear.py``, and their launches."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import triton

from galley.errors import UnsupportedModel
from galley.formats.values import dequantize
from galley.formats.weights import BlockWeight, DenseWeight, IntWeight, Weight, WeightKind
from galley.ops.triton.kernels.linear import linear_kernel
from galley.ops.triton.kernels.rows import gather_kernel
from galley.ops.triton.tiles import INTERPRETED, ROWS_TOGETHER, Device, linear_tile
from galley.quant.rtn import not_finite, quantize_int4, quantize_int8

_DENSE_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_CODES: Final = 256.0
"""Kernels read E4M3 as its value divided by this."""

_LEAST_GROUP: Final = 16
"""Columns: the depth of a product on tensor cores."""

GATHERED: Final = 1024
"""Columns that a program of ``gather_kernel`` copies."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix on the device.

    Attributes:
        kind: "dense", "int8", "int4" or "fp8".
        values: see ``kernels/linear.py``.
        outputs, depth: its size.
        group: columns that share a scale.
        columns: of a tile, where groups decide that; 0 where any number does.
        scales, zeros, minima: [groups, outputs], or None.
        bias: [outputs] float32, or None.
    """

    kind: str
    values: torch.Tensor
    outputs: int
    depth: int
    group: int
    columns: int = 0
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        parts = (self.values, self.scales, self.zeros, self.minima, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def grouped(self) -> bool:
        """Whether columns have scales of several groups."""
        return self.kind != "dense" and (self.group < self.depth or self.minima is not None)

    def multiply(
        self, device: Device, x: torch.Tensor, out: torch.Tensor, *, gated: bool = False
    ) -> None:
        """``out`` becomes x @ matrix^T; ``gated``: silu of the even outputs times the odd ones.

        Args:
            device: that all is on.
            x: [rows, depth].
            out: [rows, outputs], or half as many.
            gated: see above.
        """
        rows = len(x)
        tile = linear_tile(device, self.kind, x.dtype, rows, self.outputs, self.columns)
        none = self.values
        grid = (triton.cdiv(self.outputs, tile.outputs) * triton.cdiv(rows, tile.rows),)
        linear_kernel[grid](
            x,
            self.values,
            none if self.scales is None else self.scales,
            none if self.zeros is None else self.zeros,
            none if self.minima is None else self.minima,
            none if self.bias is None else self.bias,
            out,
            rows,
            self.outputs,
            self.depth,
            x.stride(0),
            out.stride(0),
            self.group,
            KIND=self.kind,
            FAST=device.capability >= 80 and x.dtype == torch.bfloat16 and self.kind != "dense",
            GROUPED=self.grouped,
            ZEROS=self.zeros is not None,
            MINIMA=self.minima is not None,
            BIAS=self.bias is not None,
            GATED=gated,
            BLOCK_N=tile.outputs,
            BLOCK_T=tile.rows,
            BLOCK_K=tile.columns,
            EVEN=self.depth % tile.columns == 0,
            TOGETHER=tile.together,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **FUSION,
        )

    def gather(self, numbers: torch.Tensor, out: torch.Tensor) -> None:
        """Rows ``numbers`` of the matrix, dequantised, to ``out`` [numbers, depth]."""
        none = self.values
        block = min(GATHERED, triton.next_power_of_2(self.depth))
        gather_kernel[(triton.cdiv(len(numbers), ROWS_TOGETHER), triton.cdiv(self.depth, block))](
            numbers,
            self.values,
            none if self.scales is None else self.scales,
            none if self.zeros is None else self.zeros,
            none if self.minima is None else self.minima,
            out,
            len(numbers),
            self.values.stride(0),
            out.stride(0),
            self.depth,
            self.outputs,
            self.group,
            KIND=self.kind,
            ZEROS=self.zeros is not None,
            MINIMA=self.minima is not None,
            HALF=max(1, self.columns // 2),
            ROWS=ROWS_TOGETHER,
            BLOCK=block,
            **FUSION,
        )


FUSION: Final[Mapping[str, Any]] = {} if INTERPRETED else {"enable_fp_fusion": False}
"""A product and the sum behind it round apart: where a compiler fuses them is not ours to say."""


def pack(
    weights: Sequence[Weight],
    kind: WeightKind,
    dtype: torch.dtype,
    device: torch.device,
    *,
    bias: Sequence[Weight] = (),
    gated: bool = False,
) -> Matrix:
    """One matrix of all rows of ``weights``.

    Args:
        weights: of one depth.
        kind: what dense ones become; others stay what they are.
        dtype: of activations.
        device: where to keep it.
        bias: vectors, one for each matrix, or none.
        gated: two matrices, whose rows take turns.

    Raises:
        UnsupportedModel: the kernels read no such matrix.
    """
    parts = [_packed(weight, kind, dtype, device) for weight in weights]
    made = parts[0] if len(parts) == 1 else _joined(parts)
    made = _bias_behind(made, bias, device)
    return _in_turns(made) if gated else made


def _packed(weight: Weight, kind: WeightKind, dtype: torch.dtype, device: torch.device) -> Matrix:
    if isinstance(weight, BlockWeight):
        raise UnsupportedModel(
            f"tensor {weight.name} is kept as {weight.kind}, which executor 'gpu' cannot read"
        )
    if isinstance(weight, DenseWeight):
        if kind.name == "int8":
            weight = quantize_int8(weight)
        elif kind.name == "int4":
            weight = quantize_int4(weight)
    if isinstance(weight, IntWeight):
        return _integers(weight, dtype, device)
    values = on_device(weight, device)
    if kind.name == "fp8":
        return fp8_matrix(values)
    if dtype == torch.float16:
        halves = values.to(dtype)
        if not torch.equal(halves.isinf(), values.isinf()):
            raise not_finite(weight)
        values = halves
    elif kind.name == "bf16":
        values = values.to(torch.bfloat16)
    elif kind.name == "f16":
        values = values.to(torch.float16)
    return dense_matrix(values.to(dtype))


def on_device(weight: DenseWeight, device: torch.device) -> torch.Tensor:
    """The tensor as it is in the checkpoint."""
    raw = torch.from_numpy(np.array(weight.data)).to(device)
    return raw.view(_DENSE_TYPES[weight.dtype]).reshape(weight.shape)


def dense_matrix(values: torch.Tensor) -> Matrix:
    """Of floats [outputs, depth], which are the activations' type."""
    outputs, depth = values.shape
    return Matrix("dense", values.contiguous(), outputs, depth, depth)


def fp8_matrix(values: torch.Tensor) -> Matrix:
    """Floats as E4M3 with a scale for each output: the largest magnitude becomes 448."""
    outputs, depth = values.shape
    scales = (values.abs().amax(1, keepdim=True).float() / 448.0).clamp_min(1e-30)
    codes = (values.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    return Matrix("fp8", codes, outputs, depth, depth, scales=(scales * _CODES).T.contiguous())


def int4_columns(group: int, depth: int) -> int:
    """Columns of a tile of int4; 0 where groups are of a size that tiles cannot have."""
    if group >= depth:
        return 128
    half = min(64, group)
    fits = half >= _LEAST_GROUP and half & (half - 1) == 0 and group % half == 0
    return 2 * half if fits else 0


def int8_columns(group: int, depth: int) -> int:
    """The same of int8, where whole rows let a tile have any number: -1."""
    if group >= depth:
        return -1
    fits = group >= _LEAST_GROUP and group & (group - 1) == 0
    return min(128, group) if fits else 0


def _integers(weight: IntWeight, dtype: torch.dtype, device: torch.device) -> Matrix:
    outputs, depth = weight.shape
    choose = int4_columns if weight.bits == 4 else int8_columns
    columns = choose(weight.group, depth)
    if columns == 0:
        return dense_matrix(torch.from_numpy(dequantize(weight)).to(device, dtype))
    q = torch.from_numpy(np.array(weight.q)).to(device)
    if weight.bits == 4:
        q = nibbles(q, columns)
    scale_type = _DENSE_TYPES.get(weight.scale_type, torch.float32)

    def turned(values: Any, kept: torch.dtype) -> torch.Tensor | None:
        if values is None:
            return None
        return torch.from_numpy(np.array(values)).to(device, kept).T.contiguous()

    return Matrix(
        f"int{weight.bits}",
        q.contiguous(),
        outputs,
        depth,
        min(weight.group, depth),
        columns=max(0, columns),
        scales=turned(weight.scales, scale_type),
        zeros=turned(weight.zeros, torch.uint8),
        minima=turned(weight.minima, scale_type),
    )


def nibbles(q: torch.Tensor, columns: int) -> torch.Tensor:
    """[outputs, depth] of 0 to 15 -> bytes, two halves of so many columns in one; zeros behind the depth."""
    whole = -(-q.shape[1] // columns) * columns
    padded = torch.nn.functional.pad(q, (0, whole - q.shape[1]))
    halves = padded.view(len(q), -1, 2, columns // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(len(q), -1)


def _joined(parts: list[Matrix]) -> Matrix:
    first = parts[0]
    same = all(
        (p.kind, p.group, p.columns, p.zeros is None, p.minima is None)
        == (first.kind, first.group, first.columns, first.zeros is None, first.minima is None)
        for p in parts
    )
    assert same, "matrices of one kind are joined"

    def rows(name: str, dim: int) -> torch.Tensor | None:
        found = [getattr(p, name) for p in parts]
        return None if found[0] is None else torch.cat(found, dim)

    return dataclasses.replace(
        first,
        values=torch.cat([p.values for p in parts]),
        outputs=sum(p.outputs for p in parts),
        scales=rows("scales", 1),
        zeros=rows("zeros", 1),
        minima=rows("minima", 1),
    )


def _bias_behind(matrix: Matrix, bias: Sequence[Weight], device: torch.device) -> Matrix:
    if not bias:
        return matrix
    vectors = [vector(one, device) for one in bias]
    return dataclasses.replace(matrix, bias=torch.cat(vectors))


def _in_turns(matrix: Matrix) -> Matrix:
    """Rows 0, n, 1, n + 1, ... of 2 n."""
    half = matrix.outputs // 2
    order = torch.arange(matrix.outputs, device=matrix.values.device).view(2, half).T.reshape(-1)

    def columns(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values[..., order].contiguous()

    return dataclasses.replace(
        matrix,
        values=matrix.values[order].contiguous(),
        scales=columns(matrix.scales),
        zeros=columns(matrix.zeros),
        minima=columns(matrix.minima),
        bias=columns(matrix.bias),
    )


def vector(weight: Weight, device: torch.device) -> torch.Tensor:
    """A tensor that is no matrix, flat, in float32.

    Raises:
        UnsupportedModel: it is not dense.
    """
    if not isinstance(weight, DenseWeight):
        raise UnsupportedModel(
            f"tensor {weight.name} is kept as {weight.kind}, but executor 'gpu' reads it as floats alone"
        )
    return on_device(weight, device).float().reshape(-1)


def packed_bytes(kind: WeightKind, outputs: int, depth: int, dtype: torch.dtype) -> int:
    """Of a matrix as :func:`pack` keeps it."""
    size = outputs * depth
    if kind.name == "fp8":
        return size + 4 * outputs
    if not kind.is_integer:
        return size * dtype.itemsize
    group = kind.group or depth
    bits = 4 if kind.name == "int4" else 8
    columns = int4_columns(group, depth) if bits == 4 else int8_columns(group, depth)
    if columns == 0:
        return size * dtype.itemsize
    groups = outputs * -(-depth // group)
    scale = _DENSE_TYPES.get(str(kind.scale_type), torch.float32).itemsize
    stored = size if bits == 8 else outputs * -(-depth // columns) * columns // 2
    return stored + groups * (scale * (2 if kind.minima else 1) + (1 if kind.zeros else 0))
