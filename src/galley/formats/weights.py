"""Weights on their way from a checkpoint to an executor: raw mapped bytes with a dtype tag."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

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


Weights: TypeAlias = Mapping[str, Weight]
