"""Reader of safetensors files by mapping (https://github.com/huggingface/safetensors, "Format").

The library's own numpy reader has no bfloat16 and copies. The format is a length, a JSON header and the
bytes, so it is read here and checked before a byte is used.
"""

import math
import os
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError, shown
from galley.formats.json_file import MAX_JSON_BYTES, open_file, parse_json
from galley.formats.weights import WEIGHT_TYPES, DenseWeight, WeightType
from galley.machine import address_space_left, bytes_text

DTYPES: Final = {
    **WEIGHT_TYPES,
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16"), 2),
    **dict.fromkeys(("I32", "U32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Element type -> bytes per element; types smaller than a byte are not supported."""
MAX_HEADER_BYTES: Final = MAX_JSON_BYTES
_LENGTH_BYTES: Final = 8
_MAX_ELEMENTS: Final = 2**48
"""Maximum elements of a tensor, not counting empty dimensions: what an address space can map."""


class StoredTensor(NamedTuple):
    """A tensor as stored in a file, whatever its element type.

    ``data`` is uint8, 1-D, read-only, a view of the mapped file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    file: Path

    def dense(self) -> DenseWeight:
        """Return the tensor as a dense weight. Raises CheckpointError for any other element type."""
        if self.dtype not in WEIGHT_TYPES:
            raise self.wrong(f"dtype {self.dtype!r} is not supported; known: {_KNOWN}")
        return DenseWeight(self.name, cast(WeightType, self.dtype), self.shape, self.data)

    def wrong(self, what: str) -> CheckpointError:
        """Return the error with the message ``what`` about this tensor."""
        return CheckpointError(what, file=str(self.file), field=self.name)


_KNOWN: Final = ", ".join(WEIGHT_TYPES)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Read all tensors of one file, as views of its mapping.

    Raises:
        CheckpointError: the file is missing or truncated, or its header is wrong.
    """
    with open_file(path) as file:
        text = _header(path, file)
        start, size = _LENGTH_BYTES + len(text), os.fstat(file.fileno()).st_size
        entries = parse_json(text, path, "header")
        entries.pop("__metadata__", None)
        _check_cover(path, entries, size - start)
        mapped = _map(path, file, start, size - start)
    return {name: _weight(path, name, entry, mapped) for name, entry in entries.items()}


def read_header(path: Path) -> bytes:
    """Read the JSON header with the places of the tensors, not yet parsed.

    Raises:
        CheckpointError: the file cannot be read or is shorter than its header states.
    """
    with open_file(path) as file:
        return _header(path, file)


def _header(path: Path, file: BufferedReader) -> bytes:
    try:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            raise CheckpointError(
                f"header length {length} does not fit a file of {size} bytes", file=str(path)
            )
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"header length {length} exceeds the format's limit of {MAX_HEADER_BYTES}",
                file=str(path),
            )
        return file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=str(path)) from error


def _map(path: Path, file: BufferedReader, start: int, size: int) -> "np.ndarray[Any, Any]":
    if not size:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(file, dtype=np.uint8, mode="r", offset=start, shape=(size,))
    except OSError as error:
        raise CheckpointError(
            f"cannot map its {bytes_text(size)} ({error.strerror}), {bytes_text(address_space_left())} of "
            "address space are left; raise ulimit -v, limit memory with a container instead, which counts "
            "only memory in use, or choose a checkpoint with fewer or quantized weights",
            file=str(path),
        ) from error


def _check_cover(path: Path, entries: dict[str, Any], size: int) -> None:
    """Check that the tensors tile the data section: no overlap, no hole, no trailing bytes."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: _offsets(path, *item)):
        begin, stop = _offsets(path, name, entry)
        if begin != end or stop < begin:
            raise CheckpointError(f"starts at {begin}, expected {end}", file=str(path), field=name)
        end = stop
    if end != size:
        raise CheckpointError(
            f"tensors cover {end} of {size} bytes: truncated or trailing data", file=str(path)
        )


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(offset) is int and offset >= 0 for offset in offsets)
    ):
        raise CheckpointError(f"bad data_offsets {shown(offsets)}", file=str(path), field=name)
    return offsets[0], offsets[1]


def _weight(path: Path, name: str, entry: dict[str, Any], mapped: Any) -> StoredTensor:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            f"dtype {shown(dtype)} is not supported; known: {_KNOWN}", file=str(path), field=name
        )
    if (
        not isinstance(shape, list)
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(n or 1 for n in shape) > _MAX_ELEMENTS
    ):
        raise CheckpointError(f"bad shape {shown(shape)}", file=str(path), field=name)
    begin, stop = _offsets(path, name, entry)
    needs = math.prod(shape) * DTYPES[dtype]
    if needs != stop - begin:
        raise CheckpointError(
            f"shape {shown(shape)} of {dtype} needs {needs} bytes, but has {stop - begin}",
            file=str(path),
            field=name,
        )
    return StoredTensor(name, dtype, tuple(shape), mapped[begin:stop], path)
