"""Quantised weights in their canonical form: what every method produces and every executor packs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.errors import UnsupportedModel
from galley.formats.weights import Weight, WeightType

Floats = npt.NDArray[np.float32]

INT4_MIDDLE: Final = 8
"""What stands for zero in an int4 weight without zero points."""


@dataclass(frozen=True, slots=True)
class IntWeight:
    """A matrix [outputs, depth] of small integers with a scale for each group along its depth.

    Attributes:
        bits: 8 (``q`` is int8, symmetric) or 4 (``q`` is uint8, 0 to 15).
        q: [outputs, depth].
        group: columns that share a scale; the last group may be shorter.
        scales: [outputs, groups] float32; each value is one that ``scale_type`` holds exactly.
        zeros: [outputs, groups] uint8: the ``q`` that stands for zero, int4 only; None means 8.
        scale_type: the element type to keep the scales in.
    """

    name: str
    bits: int
    q: npt.NDArray[np.int8] | npt.NDArray[np.uint8]
    group: int
    scales: Floats
    zeros: npt.NDArray[np.uint8] | None
    scale_type: WeightType

    def __post_init__(self) -> None:
        assert self.bits in (4, 8)
        assert self.q.dtype == (np.int8 if self.bits == 8 else np.uint8)
        assert self.scales.shape == (self.shape[0], -(-self.shape[1] // self.group))
        assert self.zeros is None or (self.bits == 4 and self.zeros.shape == self.scales.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, depth)."""
        return (self.q.shape[0], self.q.shape[1])


Quantise: TypeAlias = Callable[[Weight], IntWeight]


def not_finite(weight: Weight) -> UnsupportedModel:
    """The error for a tensor that integers cannot stand for."""
    return UnsupportedModel(
        f"tensor {weight.name} holds values that are infinite, NaN or too far apart for integers; "
        "set quantize to bf16 or float32"
    )


def to_float32(weight: Weight) -> Floats:
    """The tensor's values, in its shape."""
    if weight.dtype == "F32":
        values = weight.data.view(np.float32)
    elif weight.dtype == "F16":
        values = weight.data.view(np.float16).astype(np.float32)
    else:
        values = (weight.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.reshape(weight.shape)


def bf16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Rounded to the nearest bfloat16, ties to even. ``values`` are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def dequantise(weight: IntWeight) -> Floats:
    """[outputs, depth]: (q - zero) * scale."""
    depth = weight.shape[1]

    def spread(values: npt.NDArray[np.generic]) -> Floats:
        return np.repeat(values.astype(np.float32), weight.group, axis=1)[:, :depth]

    middle = 0 if weight.bits == 8 else INT4_MIDDLE
    zeros = middle if weight.zeros is None else spread(weight.zeros)
    return (weight.q.astype(np.float32) - zeros) * spread(weight.scales)
