"""Weights on their way from a checkpoint to an executor: raw mapped bytes with a dtype tag."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

WeightType = Literal["F32", "BF16", "F16"]
WEIGHT_TYPES: Final[Mapping[str, int]] = {"F32": 4, "BF16": 2, "F16": 2}
"""Tag (safetensors' spelling) -> bytes per element."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor, row-major, little-endian.

    ``data`` is uint8, 1-D, read-only, usually a view of the mapped file: the checkpoint must outlive
    it. numpy has no bfloat16, so the element type is the tag and not ``data.dtype``.
    """

    name: str
    dtype: WeightType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        wanted = int(np.prod(self.shape, dtype=np.int64)) * WEIGHT_TYPES[self.dtype]
        assert self.data.dtype == np.uint8
        assert self.data.nbytes == wanted

    def flattened(self) -> Self:
        """As a matrix, if it has more than two dimensions: [n, c, size] becomes [n, c * size]."""
        if len(self.shape) <= 2:
            return self
        return dataclasses.replace(self, shape=(self.shape[0], math.prod(self.shape[1:])))


Weights: TypeAlias = Mapping[str, Weight]
