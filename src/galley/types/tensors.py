"""Tensors of requests and answers, with the data types of the Open Inference Protocol (v2)."""

from math import prod
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

Datatype: TypeAlias = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]

ELEMENT_BYTES: Final[dict[Datatype, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Data type -> bytes of an element. Elements of BYTES differ in size and are not listed."""


if TYPE_CHECKING:
    Data: TypeAlias = bytes | memoryview
else:
    Data = bytes
"""A tensor's elements: bytes in a decoded frame, or a view of where they were received."""

MOST_BYTES: Final = 255 << 20
"""The most bytes of a request's tensors, or of its answer's: they are in one frame between processes."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a model.

    Attributes:
        shape: length of each axis; -1: any length.
        optional: whether a request may leave the input out.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A named tensor.

    Attributes:
        shape: length of each axis; none is negative.
        data: the elements in row-major order, little-endian. A BOOL is a byte, 0 or 1. An element of BYTES
            is its length, as 4 bytes, followed by that many bytes.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Data

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)
