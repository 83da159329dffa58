"""A checkpoint's tensors, typed: the kinds of values in which formats store them, and a class for each.

A tensor is *dense* (float32, bfloat16, float16), *integer* (small integers with a scale for each group of
columns), *FP8* (E4M3 with such scales) or of a *block kind* (raw blocks that a format defines, such as
GGUF's Q4_K).
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.types.weight_dtypes import WEIGHT_DTYPES

WeightType = Literal["F32", "BF16", "F16"]
WEIGHT_TYPES: Final[Mapping[str, int]] = {"F32": 4, "BF16": 2, "F16": 2}
"""Type of a dense tensor's elements or of scales, spelled as in safetensors -> bytes per element."""

ScaleType = Literal["F32", "BF16", "F16", "F16xI8"]
"""How scales and minima are stored: as floats of a type, or as :class:`Nested`."""

SUPER: Final = 256
"""Columns that share a float16 of nested scales."""

FP8_KIND: Final = "fp8"
"""Name of the kind of :class:`Fp8Weight`."""

MXFP4_KIND: Final = "mxfp4"
"""Name of the kind of :class:`Mxfp4Weight`."""

MXFP4_GROUP: Final = 32
"""Columns that share a scale in MXFP4."""

Floats = npt.NDArray[np.float32]

INT4_MIDDLE: Final = 8
"""The integer that stands for zero in an int4 weight without zero points and minima."""


@dataclass(frozen=True, slots=True)
class WeightKind:
    """How the values of a tensor are stored.

    Attributes:
        name: "float32", "bf16", "f16", "fp8", "mxfp4", "int8", "int4", or the name of a block kind such as
            "Q4_K".
        group: for a kind with scales, how many columns share one; 0 means all columns.
        scale_type: for a kind with scales, how these and minima are stored.
        zeros: whether each group has a zero point.
        minima: whether each group has a float minimum.
    """

    name: str
    group: int = 0
    scale_type: ScaleType | None = None
    zeros: bool = False
    minima: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether the values are floats, one after another."""
        return self in DENSE_KINDS.values()

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers with scales."""
        return self.scale_type is not None and self.name not in (FP8_KIND, MXFP4_KIND)

    def __str__(self) -> str:
        """Return a description for users, unique to each kind: ``int4 (group 128, BF16 scales)``."""
        if self.scale_type is None:
            return self.name
        parts = [f"group {self.group}" if self.group else "whole rows", f"{self.scale_type} scales"]
        parts += ["zero points"] if self.zeros else []
        parts += ["float minima"] if self.minima else []
        return f"{self.name} ({', '.join(parts)})"


DENSE_KINDS: Final[Mapping[str, WeightKind]] = {
    one.element: WeightKind(one.name) for one in WEIGHT_DTYPES.values() if one.element
}
"""Element type -> kind of a dense tensor."""

Kinds: TypeAlias = Mapping[str, WeightKind]
"""Tensor name -> kind."""


class TensorInfo(NamedTuple):
    """Properties of a tensor that are known before its values are read."""

    shape: tuple[int, ...]
    kind: WeightKind


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A tensor of floats, row-major, little-endian.

    ``data`` is uint8, 1-D, read-only, usually a view of the mapped file: the checkpoint must outlive
    it. numpy has no bfloat16, so the element type is ``dtype`` and not ``data.dtype``.
    """

    name: str
    dtype: WeightType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        wanted = math.prod(self.shape) * WEIGHT_TYPES[self.dtype]
        assert self.data.dtype == np.uint8
        assert self.data.nbytes == wanted

    @property
    def kind(self) -> WeightKind:
        """Weight kind; see :class:`WeightKind`."""
        return DENSE_KINDS[self.dtype]

    def flattened(self) -> Self:
        """Return a matrix if there are more than two dimensions: [n, c, size] becomes [n, c * size]."""
        return dataclasses.replace(self, shape=flat(self.shape))


class Nested(NamedTuple):
    """Scales or minima that are themselves integers with scales, as in GGUF's K types.

    Attributes:
        steps: [outputs, groups] int8.
        units: [outputs, columns / SUPER, rounded up] float16: the value of one step.
    """

    steps: npt.NDArray[np.int8]
    units: npt.NDArray[np.float16]

    def floats(self, group: int) -> Floats:
        """Return [outputs, groups]: the products, which float32 holds exactly."""
        units = np.repeat(self.units.astype(np.float32), SUPER // group, axis=1)
        made: Floats = self.steps.astype(np.float32) * units[:, : self.steps.shape[1]]
        return made


@dataclass(frozen=True, slots=True)
class IntWeight:
    """A matrix [outputs, depth] of small integers with a scale for each group along its depth.

    An element's value is ``(q - zero) * scale``, or ``q * scale + minimum`` where there are minima.

    Attributes:
        name: name of the tensor.
        bits: 8 (``q`` is int8, and its zero is 0), 7 (the same, but from -63 to 63) or 4 (``q`` is uint8,
            0 to 15).
        q: [outputs, depth].
        group: columns that share a scale; the last group may be shorter.
        scales: [outputs, groups] float32; each value is one that ``scale_type`` holds exactly.
        zeros: [outputs, groups] uint8: the zero points, int4 only; None means INT4_MIDDLE.
        scale_type: how to store scales and minima.
        minima: [outputs, groups] float32, instead of zero points (GGUF's Q4_1); each value is one that
            ``scale_type`` holds exactly.
        nested: for type "F16xI8": the factors of ``scales``, and those of ``minima`` if there are any.
        input_step: what all inputs of the matrix are rounded to multiples of, as int8 with a static scale;
            0: the checkpoint has no such scale.
    """

    name: str
    bits: int
    q: npt.NDArray[np.int8] | npt.NDArray[np.uint8]
    group: int
    scales: Floats
    zeros: npt.NDArray[np.uint8] | None
    scale_type: ScaleType
    minima: Floats | None = None
    nested: tuple[Nested, Nested | None] | None = None
    input_step: float = 0.0

    def __post_init__(self) -> None:
        assert self.bits in (4, 7, 8)
        assert self.q.dtype == (np.uint8 if self.bits == 4 else np.int8)
        assert self.scales.shape == (self.shape[0], -(-self.shape[1] // self.group))
        assert self.zeros is None or (self.bits == 4 and self.zeros.shape == self.scales.shape)
        assert (self.nested is not None) == (self.scale_type == "F16xI8")
        assert self.nested is None or SUPER % self.group == 0
        assert self.minima is None or (
            self.zeros is None and self.minima.shape == self.scales.shape
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, depth)."""
        return (self.q.shape[0], self.q.shape[1])

    @property
    def kind(self) -> WeightKind:
        """Weight kind; see :class:`WeightKind`."""
        return WeightKind(
            f"int{self.bits}",
            0 if self.group >= self.shape[1] else self.group,
            self.scale_type,
            self.zeros is not None,
            self.minima is not None,
        )

    def flattened(self) -> Self:
        """Return itself, which is a matrix."""
        return self


@dataclass(frozen=True, slots=True)
class SmallFloats:
    """A matrix [outputs, depth] of floats of 8 or 4 bits with a scale for each group along its depth.

    Attributes:
        name: name of the tensor.
        codes: [outputs, depth] uint8: the floats' bits; none is NaN.
        group: columns that share a scale; the last group may be shorter.
        scales: [outputs, groups] float32, which multiply.
    """

    name: str
    codes: npt.NDArray[np.uint8]
    group: int
    scales: Floats

    def __post_init__(self) -> None:
        assert self.scales.shape == (self.shape[0], -(-self.shape[1] // self.group))

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, depth)."""
        return (self.codes.shape[0], self.codes.shape[1])

    def flattened(self) -> Self:
        """Return itself, which is a matrix."""
        return self


@dataclass(frozen=True, slots=True)
class Fp8Weight(SmallFloats):
    """A matrix of E4M3; see :class:`SmallFloats`."""

    @property
    def kind(self) -> WeightKind:
        """Weight kind; see :class:`WeightKind`."""
        return WeightKind(FP8_KIND, 0 if self.group >= self.shape[1] else self.group, "F32")


@dataclass(frozen=True, slots=True)
class Mxfp4Weight(SmallFloats):
    """A matrix of E2M1, a code in each byte, whose scales are powers of two; see :class:`SmallFloats`."""

    @property
    def kind(self) -> WeightKind:
        """Weight kind; see :class:`WeightKind`."""
        return mxfp4_kind(self.shape[1])


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A tensor in blocks whose bytes a format defines, as they are in the file.

    Attributes:
        name: name of the tensor.
        block_kind: the format's name of the blocks, such as "Q4_K" (GGUF) or "MXFP4" (OCP MX).
        shape: row-major; the last dimension is a multiple of ``block``.
        block: values in a block.
        block_bytes: bytes of a block.
        data: uint8, 1-D: all blocks of a row, row after row.
    """

    name: str
    block_kind: str
    shape: tuple[int, ...]
    block: int
    block_bytes: int
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        assert self.shape[-1] % self.block == 0
        assert self.data.nbytes == math.prod(self.shape) // self.block * self.block_bytes

    @property
    def kind(self) -> WeightKind:
        """Weight kind; see :class:`WeightKind`."""
        return WeightKind(self.block_kind)

    def flattened(self) -> Self:
        """Return a matrix if there are more than two dimensions."""
        return dataclasses.replace(self, shape=flat(self.shape))


Weight: TypeAlias = DenseWeight | IntWeight | Fp8Weight | Mxfp4Weight | BlockWeight


def mxfp4_kind(depth: int) -> WeightKind:
    """Return the kind of an MXFP4 matrix of ``depth`` columns; bfloat16 holds its scales exactly."""
    return WeightKind(MXFP4_KIND, MXFP4_GROUP if depth > MXFP4_GROUP else 0, "BF16")


class Weights(Mapping[str, Weight]):
    """Tensors by name. Indexing may read and unpack a tensor, each time anew; :meth:`info` never does.

    Attributes:
        notes: facts about how the format is read that an operator should know, one sentence each.
    """

    notes: tuple[str, ...] = ()

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Return shape and kind of a tensor. Raises KeyError if there is none of that name."""

    def is_rounded(self, name: str) -> bool:
        """Return whether a tensor's floats stand for the checkpoint's integers, so stay unrounded."""
        return False

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs, without reading it; see :class:`IntWeight`."""
        return 0.0

    def whole_rows(self, name: str) -> int:
        """Return the rows of a tensor; of a part of one that is divided, those of all parts together."""
        return self.info(name).shape[0]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a tensor of that name, without reading it as Mapping's default does."""
        try:
            return isinstance(name, str) and self.info(name) is not None
        except KeyError:
            return False


class LoadedWeights(Weights):
    """Tensors that are in memory, or mapped."""

    def __init__(self, tensors: Mapping[str, Weight]) -> None:
        self._tensors = tensors

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        weight = self._tensors[name]
        return TensorInfo(weight.shape, weight.kind)

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs; see :class:`Weights`."""
        weight = self._tensors[name]
        return weight.input_step if isinstance(weight, IntWeight) else 0.0

    def __getitem__(self, name: str) -> Weight:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class FlatWeights(Weights):
    """Some tensors of other weights, as matrices: those of more than two dimensions are flattened."""

    def __init__(self, weights: Weights, names: tuple[str, ...]) -> None:
        self._weights = weights
        self._names = dict.fromkeys(names)

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        shape, kind = self._weights.info(self._known(name))
        return TensorInfo(flat(shape), kind)

    def is_rounded(self, name: str) -> bool:
        """Return whether a tensor is rounded; see :class:`Weights`."""
        return self._weights.is_rounded(self._known(name))

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs; see :class:`Weights`."""
        return self._weights.input_step(self._known(name))

    def __getitem__(self, name: str) -> Weight:
        return self._weights[self._known(name)].flattened()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return name


def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return [n, c, size] as [n, c * size]; vectors and matrices are unchanged."""
    return shape if len(shape) <= 2 else (shape[0], math.prod(shape[1:]))
