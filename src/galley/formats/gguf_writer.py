"""Writer of GGUF files, version 3: metadata, and tensors one after another.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.files import complete_or_absent
from galley.formats.gguf_file import MAGIC, TYPES

Bytes: TypeAlias = npt.NDArray[np.uint8]
Value: TypeAlias = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
"""Metadata value: whole numbers are written as u32, in lists as i32, others as f32."""

_VERSION: Final = 3
_ALIGNMENT: Final = 32
_U32, _I32, _F32, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9
_NUMBERS: Final = {kind.name: number for number, kind in TYPES.items()}
_SIZES: Final = {kind.name: kind for kind in TYPES.values()}


class Outgoing(NamedTuple):
    """A tensor to be written.

    Attributes:
        name: name in the file.
        type: name of its GGUF type.
        shape: row-major.
        data: returns its bytes; it is called once, when the tensor is written.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: Callable[[], Bytes]

    @property
    def size(self) -> int:
        """Size in bytes."""
        kind = _SIZES[self.type]
        return math.prod(self.shape) // kind.values * kind.bytes


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Sequence[Outgoing]) -> None:
    """Write a file, either completely or not at all.

    Raises:
        OSError: it cannot be written.
    """
    header = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    header += [_text(key) + _value(value) for key, value in metadata.items()]
    at = 0
    for tensor in tensors:
        dimensions = tuple(reversed(tensor.shape))
        header.append(_text(tensor.name) + struct.pack("<I", len(dimensions)))
        header.append(struct.pack(f"<{len(dimensions)}Q", *dimensions))
        header.append(struct.pack("<IQ", _NUMBERS[tensor.type], at))
        at += tensor.size + -tensor.size % _ALIGNMENT
    text = b"".join(header)
    with complete_or_absent(path) as partial, partial.open("wb") as file:
        file.write(text + bytes(-len(text) % _ALIGNMENT))
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.data())
            assert data.nbytes == tensor.size, tensor.name
            file.write(data.reshape(-1).data)
            file.write(bytes(-tensor.size % _ALIGNMENT))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    return struct.pack("<I", _ARRAY) + _elements(value)


def _elements(values: Sequence[int] | Sequence[float] | Sequence[str]) -> bytes:
    count = len(values)
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return struct.pack("<IQ", _TEXT, count) + b"".join(map(_text, texts))
    kind, letter = (_I32, "i") if all(isinstance(v, int) for v in values) else (_F32, "f")
    return struct.pack(f"<IQ{count}{letter}", kind, count, *values)
