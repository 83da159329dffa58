"""Reads safetensors files by mapping them (https://github.com/huggingface/safetensors, "Format").

The library's own numpy reader has no bfloat16 and copies; the format is a length, a JSON header and
the bytes, so it is read here and checked before a byte is used.
"""

import math
import os
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from galley.errors import CheckpointError, shown
from galley.formats.json_file import MAX_JSON_BYTES, open_file, parse_json
from galley.formats.weights import WEIGHT_TYPES, DenseWeight, WeightType
from galley.machine import address_space_left, bytes_text

MAX_HEADER_BYTES: Final = MAX_JSON_BYTES
_LENGTH_BYTES: Final = 8
_MAX_ELEMENTS: Final = 2**48
"""Of a tensor, its empty dimensions left out: what the largest address spaces can map."""


def read_safetensors(path: Path) -> dict[str, DenseWeight]:
    """All tensors of one file, as views of its mapping.

    Raises:
        CheckpointError: the file is missing, truncated, or its header lies.
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
    """The JSON that says what is where, not yet parsed.

    Raises:
        CheckpointError: the file cannot be read or is shorter than it says.
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
                f"header length {length} is beyond the format's limit of {MAX_HEADER_BYTES}",
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
            "address space are left: raise ulimit -v, or limit the memory with a container, which counts "
            "what is used instead, or take a checkpoint with fewer or quantized weights",
            file=str(path),
        ) from error


def _check_cover(path: Path, entries: dict[str, Any], size: int) -> None:
    """The tensors must tile the data section: no overlap, no hole, no trailing bytes."""
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


def _weight(
    path: Path, name: str, entry: dict[str, Any], mapped: np.ndarray[Any, Any]
) -> DenseWeight:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in WEIGHT_TYPES:
        raise CheckpointError(
            f"dtype {shown(dtype)} is not supported; known: {', '.join(WEIGHT_TYPES)}",
            file=str(path),
            field=name,
        )
    if (
        not isinstance(shape, list)
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(n or 1 for n in shape) > _MAX_ELEMENTS
    ):
        raise CheckpointError(f"bad shape {shown(shape)}", file=str(path), field=name)
    begin, stop = _offsets(path, name, entry)
    elements = math.prod(shape)
    if elements * WEIGHT_TYPES[dtype] != stop - begin:
        raise CheckpointError(
            f"shape {shown(shape)} of {dtype} needs {elements * WEIGHT_TYPES[dtype]} bytes, "
            f"has {stop - begin}",
            file=str(path),
            field=name,
        )
    return DenseWeight(name, cast(WeightType, dtype), tuple(shape), mapped[begin:stop])
