"""Packs weights into the layouts of ``kernels/linear.py``."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from galley.errors import UnsupportedModel
from galley.formats.values import dequantize
from galley.formats.weights import (
    BlockWeight,
    DenseWeight,
    Fp8Weight,
    IntWeight,
    Mxfp4Weight,
    SmallFloats,
    Weight,
    WeightKind,
)
from galley.ops.triton.matrices import PARTS, Matrix
from galley.quant.rtn import QUANTIZERS, not_finite

_DENSE_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_CODES: Final = 256.0
"""Kernels decode E4M3 as its value divided by this."""

_WORDS: Final = 64
"""Words per tile if groups allow it: a cache line."""

_LEAST_WORDS: Final = 16
"""Minimum words per tile: the depth of a product on tensor cores."""


def pack(
    weights: Sequence[Weight],
    kind: WeightKind,
    dtype: torch.dtype,
    device: torch.device,
    *,
    bias: Sequence[Weight] = (),
    gated: bool = False,
) -> Matrix:
    """Pack all rows of ``weights`` as one matrix.

    Args:
        weights: tensors of one depth.
        kind: type that dense tensors are converted to; others stay as they are.
        dtype: type of activations.
        device: device of the packed matrix.
        bias: bias vectors, one for each tensor, or none.
        gated: interleave the rows of the first and second half.

    Raises:
        UnsupportedModel: the kernels cannot read such a matrix.
    """
    parts = [_packed(weight, kind, dtype, device) for weight in weights]
    made = parts[0] if len(parts) == 1 else join(parts)
    made = _bias_behind(made, bias, device)
    return _in_turns(made) if gated else made


def _packed(weight: Weight, kind: WeightKind, dtype: torch.dtype, device: torch.device) -> Matrix:
    if isinstance(weight, BlockWeight):
        raise UnsupportedModel(
            f"tensor {weight.name} is kept as {weight.kind}, which executor 'gpu' cannot read"
        )
    if isinstance(weight, DenseWeight) and kind.name in QUANTIZERS:
        weight = QUANTIZERS[kind.name](weight)
    if isinstance(weight, IntWeight):
        return _integers(weight, dtype, device)
    if isinstance(weight, Fp8Weight):
        return _small_floats(weight, "fp8", _CODES, torch.float32, dtype, device)
    if isinstance(weight, Mxfp4Weight):
        return _small_floats(weight, "mxfp4", 1.0, torch.bfloat16, dtype, device)
    return _floats(weight, kind, dtype, device)


def _floats(
    weight: DenseWeight, kind: WeightKind, dtype: torch.dtype, device: torch.device
) -> Matrix:
    """Return a dense tensor as a matrix of floats, rounded to ``kind``."""
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
    """Copy a tensor to the device, as it is in the checkpoint."""
    raw = torch.from_numpy(np.array(weight.data)).to(device)
    return raw.view(_DENSE_TYPES[weight.dtype]).reshape(weight.shape)


def dense_matrix(values: torch.Tensor) -> Matrix:
    """Return a matrix of floats [outputs, depth] that have the activations' type."""
    outputs, depth = values.shape
    return Matrix("dense", values.contiguous(), outputs, depth, depth)


def fp8_matrix(values: torch.Tensor) -> Matrix:
    """Quantize floats to E4M3 with a scale for each output: the largest magnitude becomes 448."""
    outputs, depth = values.shape
    scales = (values.abs().amax(1, keepdim=True).float() / 448.0).clamp_min(1e-30)
    codes = (values.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    return Matrix(
        "fp8",
        words_of(codes, 2, _WORDS),
        outputs,
        depth,
        depth,
        words=_WORDS,
        coded=True,
        scales=(scales * _CODES).T.contiguous(),
    )


def _small_floats(
    weight: SmallFloats,
    kind: str,
    unit: float,
    scale_type: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> Matrix:
    """Return a checkpoint's codes as they are, or floats if no tile has one scale for each part.

    Args:
        weight: the codes and their scales.
        kind: the kind of matrix.
        unit: what kernels divide its decoded values by, so that scales are multiplied by it.
        scale_type: type of the packed scales.
        dtype: type of activations.
        device: device of the packed matrix.
    """
    outputs, depth = weight.shape
    words = words_in_tile(weight.group, depth)
    if words == 0:
        return dense_matrix(torch.from_numpy(dequantize(weight)).to(device, dtype))
    scales = torch.from_numpy(weight.scales).to(device)
    codes = torch.from_numpy(np.array(weight.codes)).to(device)
    return Matrix(
        kind,
        words_of(codes, PARTS[kind], words),
        outputs,
        depth,
        min(weight.group, depth),
        words=words,
        coded=True,
        scales=(scales * unit).T.contiguous().to(scale_type),
    )


def words_in_tile(group: int, depth: int) -> int:
    """Return the words of a tile such that each part has one scale; 0 if no tile is possible."""
    if group >= depth:
        return _WORDS
    words = min(_WORDS, group)
    fits = words >= _LEAST_WORDS and words & (words - 1) == 0 and group % words == 0
    return words if fits else 0


def _integers(weight: IntWeight, dtype: torch.dtype, device: torch.device) -> Matrix:
    outputs, depth = weight.shape
    words = words_in_tile(weight.group, depth)
    if words == 0:
        return dense_matrix(torch.from_numpy(dequantize(weight)).to(device, dtype))
    kind = "int4" if weight.bits == 4 else "int8"
    q = torch.from_numpy(np.array(weight.q)).to(device)
    scale_type = _DENSE_TYPES.get(weight.scale_type, torch.float32)

    def transposed(values: Any, kept: torch.dtype) -> torch.Tensor | None:
        if values is None:
            return None
        return torch.from_numpy(np.array(values)).to(device, kept).T.contiguous()

    return Matrix(
        kind,
        words_of(q.view(torch.uint8), PARTS[kind], words),
        outputs,
        depth,
        min(weight.group, depth),
        words=words,
        coded=True,
        scales=transposed(weight.scales, scale_type),
        zeros=transposed(weight.zeros, torch.uint8),
        minima=transposed(weight.minima, scale_type),
    )


def words_of(codes: torch.Tensor, parts: int, words: int) -> torch.Tensor:
    """Pack codes [outputs, depth] uint8 into int16 words of ``parts`` codes, padded with zeros."""
    outputs, depth = codes.shape
    whole = -(-depth // (parts * words)) * parts * words
    split = torch.nn.functional.pad(codes, (0, whole - depth)).view(outputs, -1, parts, words)
    made = torch.zeros((outputs, split.shape[1], words), dtype=torch.int16, device=codes.device)
    for part in range(parts):
        made |= split[:, :, part].to(torch.int16) << (16 // parts * part)
    return made.reshape(outputs, -1)


def join(parts: Sequence[Matrix]) -> Matrix:
    """Return the rows of matrices of one kind and depth as one matrix."""
    first = parts[0]
    same = all(
        (p.kind, p.group, p.words, p.zeros is None, p.minima is None)
        == (first.kind, first.group, first.words, first.zeros is None, first.minima is None)
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
        bias=rows("bias", 0),
    )


def _bias_behind(matrix: Matrix, bias: Sequence[Weight], device: torch.device) -> Matrix:
    if not bias:
        return matrix
    vectors = [vector(one, device) for one in bias]
    return dataclasses.replace(matrix, bias=torch.cat(vectors))


def _in_turns(matrix: Matrix) -> Matrix:
    """Interleave the 2 n rows as 0, n, 1, n + 1, ..."""
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
    """Return a tensor that is not a matrix, flat, in float32.

    Raises:
        UnsupportedModel: it is not dense.
    """
    if not isinstance(weight, DenseWeight):
        raise UnsupportedModel(
            f"tensor {weight.name} is kept as {weight.kind}, but executor 'gpu' supports only floats here"
        )
    return on_device(weight, device).float().reshape(-1)


def packed_bytes(kind: WeightKind, outputs: int, depth: int, dtype: torch.dtype) -> int:
    """Return the bytes of a matrix packed by :func:`pack`."""
    size = outputs * depth
    if kind.name not in PARTS:
        return size * dtype.itemsize
    group = kind.group or depth
    words = words_in_tile(group, depth)
    if words == 0:
        return size * dtype.itemsize
    parts = PARTS[kind.name]
    stored = 2 * outputs * -(-depth // (parts * words)) * words
    groups = outputs * -(-depth // group)
    scale = _DENSE_TYPES.get(str(kind.scale_type), torch.float32).itemsize
    return stored + groups * (scale * (2 if kind.minima else 1) + (1 if kind.zeros else 0))
