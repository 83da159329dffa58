"""Tensors of requests and answers as JSON, and as the bytes that follow it."""

import struct
from base64 import b64decode
from collections.abc import Sequence
from itertools import chain
from math import isfinite, prod
from typing import Any, Final, get_args

from galley.errors import RequestError
from galley.protocols.oip.schemas import InferInput
from galley.types import Datatype, Tensor

DATATYPES: Final[tuple[Datatype, ...]] = get_args(Datatype)

_FORMATS: Final[dict[Datatype, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""Data type -> its letter in the formats of :mod:`struct`."""

_LENGTH: Final = struct.Struct("<I")


def tensor_of(
    given: InferInput, binary: memoryview | None, param: str, *, base64: bool = False
) -> Tensor:
    """Return an input of a request as a tensor.

    Args:
        given: the input.
        binary: its part of the bytes that follow the JSON; None if its data is in the JSON.
        param: its field, for errors.
        base64: whether the elements, of BYTES in the JSON, are to be decoded.

    Raises:
        RequestError: the data type is unknown, or the data do not have that type or the shape's length.
    """
    if given.datatype not in DATATYPES:
        raise RequestError(
            f"{param}.datatype is {given.datatype[:40]!r}; it takes {', '.join(DATATYPES)}",
            param=f"{param}.datatype",
        )
    datatype: Datatype = given.datatype
    if (binary is None) == (given.data is None):
        where = "both in data and" if binary is not None else "neither in data nor"
        raise RequestError(
            f"input {given.name!r} has its values {where} in binary_data_size bytes after the JSON",
            param=param,
        )
    data: bytes | memoryview
    if binary is not None:
        data = binary
    else:
        assert given.data is not None
        data = _from_json(datatype, given.data, prod(given.shape), given.name, f"{param}.data")
    if base64:
        data = _decoded(datatype, given, param)
    return Tensor(name=given.name, datatype=datatype, shape=tuple(given.shape), data=data)


def packed(datatype: Datatype, values: Sequence[Any]) -> bytes:
    """Return elements of any data type but BYTES as a tensor's data.

    Raises:
        struct.error, OverflowError: an element is out of the type's range.
    """
    return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)


def packed_bytes(elements: Sequence[bytes]) -> bytes:
    """Return elements of BYTES as a tensor's data: each after its length."""
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)


def values_of(tensor: Tensor) -> list[Any]:
    """Return a tensor's elements for JSON.

    Raises:
        RequestError: an element cannot be written as JSON; the tensor must be requested as binary data.
    """
    if tensor.datatype == "BYTES":
        return _texts(tensor)
    letters = f"<{tensor.elements}{_FORMATS[tensor.datatype]}"
    values = list(struct.unpack(letters, tensor.data))
    if tensor.datatype in ("FP16", "FP32", "FP64") and not all(map(isfinite, values)):
        raise _needs_binary(tensor, "values that are infinite or no number")
    return values


def _from_json(datatype: Datatype, data: Sequence[Any], count: int, name: str, param: str) -> bytes:
    values = _flat(data, param)
    if len(values) != count:
        raise RequestError(
            f"input {name!r} has {len(values)} values in data; its shape has {count}", param=param
        )
    kinds = set(map(type, values))
    wanted: tuple[set[type], str] = {int}, "integers"
    if datatype == "BYTES":
        wanted = {str}, "strings"
    elif datatype == "BOOL":
        wanted = {bool}, "true and false"
    elif datatype in ("FP16", "FP32", "FP64"):
        wanted = {int, float}, "numbers"
    if not kinds <= wanted[0]:
        raise RequestError(
            f"input {name!r} of {datatype} takes {wanted[1]} in data, and has others", param=param
        )
    if datatype == "BYTES":
        return packed_bytes([value.encode() for value in values])
    try:
        return packed(datatype, values)
    except (struct.error, OverflowError):
        raise RequestError(
            f"input {name!r} has a value in data that is out of the range of {datatype}",
            param=param,
        ) from None


def _decoded(datatype: Datatype, given: InferInput, param: str) -> bytes:
    """Return elements of BYTES that are in base64."""
    if datatype != "BYTES" or given.data is None:
        raise RequestError(
            f"input {given.name!r} has content_type base64, which is for BYTES in data",
            param=f"{param}.parameters.content_type",
        )
    try:
        return packed_bytes([b64decode(one, validate=True) for one in _flat(given.data, param)])
    except ValueError:
        raise RequestError(
            f"input {given.name!r} has an element that is not base64", param=f"{param}.data"
        ) from None


def _flat(data: Sequence[Any], param: str) -> Sequence[Any]:
    """Return the elements of nested arrays."""
    while data and isinstance(data[0], list):
        if not all(isinstance(item, list) for item in data):
            raise RequestError(f"{param} is an array of arrays and other values", param=param)
        data = list(chain.from_iterable(data))
    return data


def _texts(tensor: Tensor) -> list[str]:
    texts, place = [], 0
    for _ in range(tensor.elements):
        begin = place + _LENGTH.size
        place = begin + _LENGTH.unpack_from(tensor.data, begin - _LENGTH.size)[0]
        try:
            texts.append(bytes(tensor.data[begin:place]).decode())
        except UnicodeDecodeError:
            raise _needs_binary(tensor, "bytes that are not UTF-8") from None
    return texts


def _needs_binary(tensor: Tensor, what: str) -> RequestError:
    return RequestError(
        f"output {tensor.name!r} has {what}, which JSON cannot express: request it with binary_data",
        param="outputs",
    )
