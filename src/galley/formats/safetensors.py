"""Reads safetensors files by mapping them (https://github.com/huggingface/safetensors, "Format").

The library's own numpy reader has no bfloat16 and copies; the format is a length, a JSON header and
the bytes, so it is read here and checked before a byte is used.
"""

import json
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from galley.errors import CheckpointError
from galley.formats.weights import WEIGHT_TYPES, DenseWeight, WeightType

MAX_HEADER_BYTES: Final = 100 * 1024 * 1024
_LENGTH_BYTES: Final = 8


def read_safetensors(path: Path) -> dict[str, DenseWeight]:
    """All tensors of one file, as views of its mapping.

    Raises:
        CheckpointError: the file is missing, truncated, or its header lies.
    """
    text = read_header(path)
    entries = _parse(path, text)
    start, size = _LENGTH_BYTES + len(text), path.stat().st_size
    if size == start:
        return {}
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=(size - start,))
    _check_cover(path, entries, size - start)
    return {name: _weight(path, name, entry, mapped) for name, entry in entries.items()}


def read_header(path: Path) -> bytes:
    """The JSON that says what is where, not yet parsed.

    Raises:
        CheckpointError: the file cannot be read or is shorter than it says.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise CheckpointError(
                    f"header length {length} does not fit a file of {size} bytes", file=str(path)
                )
            return file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=str(path)) from error


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"header is not JSON: {error}", file=str(path)) from error
    if not isinstance(header, dict):
        raise CheckpointError("header is not a JSON object", file=str(path))
    header.pop("__metadata__", None)
    return header


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
        raise CheckpointError(f"bad data_offsets {offsets!r}", file=str(path), field=name)
    return offsets[0], offsets[1]


def _weight(
    path: Path, name: str, entry: dict[str, Any], mapped: np.ndarray[Any, Any]
) -> DenseWeight:
    dtype, shape = str(entry.get("dtype")), entry.get("shape")
    if dtype not in WEIGHT_TYPES:
        raise CheckpointError(
            f"dtype {dtype!r} is not supported; known: {', '.join(WEIGHT_TYPES)}",
            file=str(path),
            field=name,
        )
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise CheckpointError(f"bad shape {shape!r}", file=str(path), field=name)
    begin, stop = _offsets(path, name, entry)
    elements = 1
    for extent in shape:
        elements *= extent
    if elements * WEIGHT_TYPES[dtype] != stop - begin:
        raise CheckpointError(
            f"shape {shape} of {dtype} needs {elements * WEIGHT_TYPES[dtype]} bytes, "
            f"has {stop - begin}",
            file=str(path),
            field=name,
        )
    return DenseWeight(name, cast(WeightType, dtype), tuple(shape), mapped[begin:stop])
