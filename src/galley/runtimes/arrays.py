"""Tensors of requests as numpy arrays, and back."""

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from galley.runtimes.tensor_model import InvalidTensors
from galley.types import Datatype, Tensor

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

DTYPES: Final[dict[Datatype, str]] = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""Data type -> numpy's. BYTES is not in it: its elements are objects."""

_DATATYPES: Final = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
_LENGTH: Final = struct.Struct("<I")


def to_array(tensor: Tensor) -> "Array":
    """Return the tensor as a read-only array; elements of BYTES as text.

    Raises:
        InvalidTensors: an element of BYTES is not UTF-8.
    """
    if tensor.datatype != "BYTES":
        return np.frombuffer(tensor.data, DTYPES[tensor.datatype]).reshape(tensor.shape)
    texts = np.empty(tensor.elements, object)
    place = 0
    for index in range(tensor.elements):
        begin = place + _LENGTH.size
        place = begin + _LENGTH.unpack_from(tensor.data, begin - _LENGTH.size)[0]
        try:
            texts[index] = bytes(tensor.data[begin:place]).decode()
        except UnicodeDecodeError:
            raise InvalidTensors(
                f"input {tensor.name!r}: element {index} of BYTES is not UTF-8"
            ) from None
    return texts.reshape(tensor.shape)


def to_tensor(name: str, array: "Array") -> Tensor:
    """Return an array as a tensor; text is encoded in UTF-8.

    Raises:
        TypeError: the protocol has no data type for its elements.
    """
    array = np.asarray(array)
    shape = tuple(map(int, array.shape))
    if array.dtype.kind in "OSU":
        return Tensor(name=name, datatype="BYTES", shape=shape, data=_spelled(array))
    datatype = _DATATYPES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise TypeError(f"output {name!r} has elements of type {array.dtype}")
    data = np.ascontiguousarray(array, DTYPES[datatype]).tobytes()
    return Tensor(name=name, datatype=datatype, shape=shape, data=data)


def _spelled(array: "Array") -> bytes:
    parts = bytearray()
    for element in array.ravel().tolist():
        text = element if isinstance(element, bytes) else str(element).encode()
        parts += _LENGTH.pack(len(text)) + text
    return bytes(parts)
