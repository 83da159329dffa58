"""The tensors of a checkpoint's files before conversion to typed weights, and matrices made of several."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError
from galley.formats.safetensors import StoredTensor
from galley.formats.values import as_dense, bf16_bits
from galley.formats.weights import (
    DENSE_KINDS,
    WEIGHT_TYPES,
    DenseWeight,
    Floats,
    IntWeight,
    TensorInfo,
    Weight,
    Weights,
    WeightType,
)
from galley.machine import bytes_text
from galley.types.weight_dtypes import WEIGHT_DTYPES

Bytes = npt.NDArray[np.uint8]

_NUMPY: Final[Mapping[str, Any]] = {
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}

KV_SCALES: Final = re.compile(
    r".*\.(self_attn|attn)\.(((q|k|v|qkv)_proj\.)?((q|k|v|kv)(_cache)?|prob(_output)?)_(scale|zero_point)"
    r"|(q|k|v)_proj\.output_(scale|zero_point))"
)
"""Names of scales that other programs use to store keys and values, or to compute attention."""

MASK: Final = re.compile(r".*\.(attn|attention)\.bias")
"""Names of causal masks, saved as buffers in checkpoints of GPT-2 and GPT-NeoX."""

BUFFERS: Final = re.compile(r"(.+\.)?embeddings\.(position_ids|token_type_ids)")
"""Integers 0, 1, 2, ... and zeros, which early versions of transformers saved with encoders."""

INPUT_SCALES: Final = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "activation_scale",
)
"""Names of a module's static scales, which other programs use to round its inputs."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of the model that a format stores as several, not yet unpacked.

    Attributes:
        info: shape and kind of the unpacked tensor.
        unpack: reads it.
        stored: name of the stored format, for users.
        stored_bytes: bytes of the values in the files, without scales.
        change: how values change that :attr:`info` has no kind for, for users; empty if none does.
        input_step: see :class:`galley.formats.weights.IntWeight`.
    """

    info: TensorInfo
    unpack: Callable[[], Weight]
    stored: str
    stored_bytes: int
    change: str = ""
    input_step: float = 0.0


class Stored:
    """A checkpoint's tensors, from which a format takes those that it knows.

    Attributes:
        floats: element type of values that no integer kind can hold: that of most of the dense tensors'
            bytes, unless float32 is requested.
        keeps_floats: whether matrices of E4M3 and MXFP4 are kept as they are stored.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        *,
        exact: bool = False,
        keeps_floats: bool = False,
    ) -> None:
        self.keeps_floats = keeps_floats
        self._left = dict(tensors)
        sizes = dict.fromkeys(WEIGHT_TYPES, 0)
        for tensor in tensors.values():
            if (
                tensor.dtype in sizes
                and len(tensor.shape) > 1
                and not tensor.name.endswith("scale")
            ):
                sizes[tensor.dtype] += tensor.data.nbytes
        most = cast(WeightType, max(sizes, key=lambda name: sizes[name]))
        self.floats: WeightType = "F32" if exact else most

    def modules(self, suffix: str) -> list[str]:
        """Return the modules or tensors for which there is a tensor of that name and this suffix."""
        return [name.removesuffix(suffix) for name in self._left if name.endswith(suffix)]

    def get(self, name: str) -> StoredTensor | None:
        """Return a tensor without taking it; None if there is none."""
        return self._left.get(name)

    def take(self, name: str) -> StoredTensor:
        """Take a tensor that must be present. Raises CheckpointError if it is not."""
        tensor = self.take_any(name)
        if tensor is None:
            file = str(next(iter(self._left.values())).file.parent) if self._left else ""
            raise CheckpointError("tensor is missing", file=file, field=name)
        return tensor

    def take_any(self, name: str) -> StoredTensor | None:
        """Take a tensor that may be present; return None if it is not."""
        return self._left.pop(name, None)

    def take_matching(self, pattern: re.Pattern[str]) -> list[StoredTensor]:
        """Take all tensors whose names match."""
        return [self.take(name) for name in list(self._left) if pattern.fullmatch(name)]

    def doubles(self) -> dict[str, Matrix]:
        """Take the remaining tensors of float64, which are read as float32."""
        names = [name for name, tensor in self._left.items() if tensor.dtype == "F64"]
        return {name: _single(self.take(name)) for name in names}

    def dense(self) -> dict[str, DenseWeight]:
        """Return the remaining tensors except causal masks. Raises CheckpointError if one is not dense."""
        return {name: tensor.dense() for name, tensor in self._left.items() if not _is_mask(tensor)}


def _single(tensor: StoredTensor) -> Matrix:
    def unpack() -> Weight:
        values = tensor.data.view(np.float64).astype(np.float32).reshape(tensor.shape)
        return as_dense(tensor.name, "F32", values)

    info = TensorInfo(tensor.shape, DENSE_KINDS["F32"])
    return Matrix(info, unpack, "float64", tensor.data.nbytes, "rounded to the nearest")


def _is_mask(tensor: StoredTensor) -> bool:
    return tensor.dtype in ("BOOL", "U8") and MASK.fullmatch(tensor.name) is not None


class UnpackedWeights(Weights):
    """Dense tensors, mapped, and matrices, each unpacked anew on every access."""

    def __init__(
        self,
        dense: Mapping[str, DenseWeight],
        matrices: Mapping[str, Matrix],
        notes: tuple[str, ...] = (),
    ) -> None:
        self._dense = dense
        self._matrices = matrices
        self.notes = notes

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        if name in self._matrices:
            return self._matrices[name].info
        weight = self._dense[name]
        return TensorInfo(weight.shape, weight.kind)

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs; see :class:`Weights`."""
        return self._matrices[name].input_step if name in self._matrices else 0.0

    def __getitem__(self, name: str) -> Weight:
        if name not in self._matrices:
            return self._dense[name]
        weight, step = self._matrices[name].unpack(), self.input_step(name)
        return (
            replace(weight, input_step=step) if isinstance(weight, IntWeight) and step else weight
        )

    def __iter__(self) -> Iterator[str]:
        yield from self._dense
        yield from self._matrices

    def __len__(self) -> int:
        return len(self._dense) + len(self._matrices)


def changes(matrices: Mapping[str, Matrix]) -> list[str]:
    """Return one sentence for each way in which matrices are stored differently from the files."""
    found: dict[tuple[str, str, str], list[Matrix]] = {}
    for matrix in matrices.values():
        if matrix.change:
            kept = str(matrix.info.kind)
            found.setdefault((matrix.stored, kept, matrix.change), []).append(matrix)
    return [
        f"{len(group)} tensors are {stored} in the checkpoint, for which there is no kernel: "
        f"they are read as {kept} ({change}), {bytes_text(sum(map(_values_bytes, group)))} instead of "
        f"{bytes_text(sum(matrix.stored_bytes for matrix in group))}"
        for (stored, kept, change), group in found.items()
    ]


def _values_bytes(matrix: Matrix) -> int:
    values = int(np.prod(matrix.info.shape, dtype=np.int64))
    known = WEIGHT_DTYPES.get(matrix.info.kind.name)
    return int(values * (4 if known is None else known.bytes))


def array(tensor: StoredTensor, dtype: str, shape: tuple[int | None, ...]) -> Any:
    """Return the tensor's values, a view; None in ``shape`` stands for any size but 0.

    Raises:
        CheckpointError: the tensor is of another shape or element type.
    """
    fits = len(tensor.shape) == len(shape) and all(
        have == want or (want is None and have > 0)
        for have, want in zip(tensor.shape, shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise tensor.wrong(f"is {tensor.dtype} {list(tensor.shape)}, expected {dtype} [{sizes}]")
    return tensor.data.view(_NUMPY.get(dtype, np.uint8)).reshape(tensor.shape)


def scale_type(tensor: StoredTensor) -> WeightType:
    """Return the element type of scales. Raises CheckpointError if they are not floats."""
    if tensor.dtype not in WEIGHT_TYPES:
        raise tensor.wrong(f"is {tensor.dtype}, expected scales of {', '.join(WEIGHT_TYPES)}")
    return cast(WeightType, tensor.dtype)


def read_floats(tensor: StoredTensor) -> Floats:
    """Return scales as float32, in their shape.

    Raises:
        CheckpointError: one is infinite or NaN, or all are zero.
    """
    if scale_type(tensor) == "BF16":
        values = (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = tensor.data.view(_NUMPY[tensor.dtype]).astype(np.float32)
    return checked(tensor, values.reshape(tensor.shape))


def checked(tensor: StoredTensor, scales: Floats) -> Floats:
    """Return the scales of ``tensor`` after a check.

    Raises:
        CheckpointError: one is infinite or NaN, or all are zero.
    """
    if not np.isfinite(scales).all():
        raise tensor.wrong("has a scale that is infinite or NaN")
    if not scales.any():
        raise tensor.wrong("has only scales of 0")
    return scales


def as_floats(values: Floats, dtype: WeightType) -> Bytes:
    """Round to the nearest value of an element type; return flat bytes. BF16 needs finite values."""
    if dtype == "BF16":
        made: Any = bf16_bits(values)
    else:
        made = np.ascontiguousarray(values).astype(_NUMPY[dtype])
    flat: Bytes = made.reshape(-1).view(np.uint8)
    return flat
