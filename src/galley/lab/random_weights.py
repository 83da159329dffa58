"""Weights with random values: speed and memory do not depend on the values."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from galley.formats.values import bf16_bits
from galley.formats.weights import (
    DENSE_KINDS,
    MXFP4_GROUP,
    MXFP4_KIND,
    DenseWeight,
    IntWeight,
    Kinds,
    Mxfp4Weight,
    TensorInfo,
    Weight,
    WeightKind,
    Weights,
    flat,
)
from galley.graph.program import Program

_DRAWN: Final = 1 << 24
"""Values that are drawn; larger tensors repeat them."""

_SCALE: Final = 2.0**-10


class RandomWeights(Weights):
    """Tensors of a program, each of them the beginning of the same random values.

    Args:
        program: has the shapes.
        kinds: of the tensors that are integers or MXFP4; the others are bfloat16.
    """

    def __init__(self, program: Program, kinds: Kinds | None = None) -> None:
        self._shapes = program.all_shapes
        self._kinds = kinds or {}
        self._largest = max(int(np.prod(shape)) for shape in self._shapes.values())
        self._random = np.random.default_rng(0)

    def info(self, name: str) -> TensorInfo:
        """See :class:`Weights`."""
        return TensorInfo(self._shapes[name], self._kinds.get(name, DENSE_KINDS["BF16"]))

    def __getitem__(self, name: str) -> Weight:
        shape, kind = self.info(name)
        if kind.is_dense:
            return DenseWeight(name, "BF16", shape, self._floats[: 2 * int(np.prod(shape))])
        return self._coded(name, flat(shape), kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _coded(self, name: str, shape: tuple[int, ...], kind: WeightKind) -> Weight:
        rows, depth = shape
        group = MXFP4_GROUP if kind.name == MXFP4_KIND else kind.group
        scales = np.full((rows, -(-depth // group)), _SCALE, np.float32)
        codes: npt.NDArray[Any] = self._bytes if kind.name == "int8" else self._nibbles
        codes = codes[: rows * depth].reshape(shape)
        if kind.name == MXFP4_KIND:
            return Mxfp4Weight(name, codes, group, scales)
        assert kind.scale_type is not None
        bits = 8 if kind.name == "int8" else 4
        return IntWeight(name, bits, codes, group, scales, None, kind.scale_type)

    @cached_property
    def _floats(self) -> npt.NDArray[np.uint8]:
        drawn = self._random.standard_normal(min(_DRAWN, self._largest), dtype=np.float32)
        return np.resize(bf16_bits(drawn / np.float32(32)), self._largest).view(np.uint8)

    @cached_property
    def _bytes(self) -> npt.NDArray[np.int8]:
        drawn = self._random.integers(-128, 128, min(_DRAWN, self._largest), dtype=np.int8)
        return np.resize(drawn, self._largest)

    @cached_property
    def _nibbles(self) -> npt.NDArray[np.uint8]:
        return self._bytes.view(np.uint8) & np.uint8(15)
