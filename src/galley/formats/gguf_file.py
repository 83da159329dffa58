"""Reader of GGUF files, versions 2 and 3, by mapping: metadata, and where each tensor is. Needs no numpy.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file is untrusted input: each count
and length is checked against the remaining bytes before anything is allocated for it.
"""

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.json_file import open_file
from galley.machine import address_space_left, bytes_text

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_PAIRS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 20
_MAX_ELEMENTS: Final = 1 << 22
"""Maximum elements of a metadata array; the largest vocabularies have a sixteenth of this."""
_MAX_NAME: Final = 1024
_MAX_TEXT: Final = 1 << 24
_MAX_DIMENSIONS: Final = 4
_MAX_VALUES: Final = 1 << 48
"""Maximum values of a tensor: what the largest address space can map."""
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 << 20
_MAX_SPLITS: Final = 1 << 12

_NUMBERS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}
"""Type of a metadata value -> struct's letter. 7 is a boolean, 8 a string, 9 an array."""
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_SPLIT_NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class TensorType(NamedTuple):
    """Number of ``values`` in a block of ``bytes``; for floats a block is one value."""

    name: str
    values: int
    bytes: int


TYPES: Final[Mapping[int, TensorType]] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17),
}
"""Number in the file -> type (``ggml_type`` in ggml.h)."""


class GGUFTensor(NamedTuple):
    """A tensor's shape, row-major, and where its bytes are in the file."""

    shape: tuple[int, ...]
    type: TensorType
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """One GGUF file.

    Attributes:
        metadata: numbers, booleans, strings, and lists of these.
        header: number of bytes before the tensors.
        mapped: the whole file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    header: int
    mapped: mmap.mmap


_ACCESSORY: Final = re.compile(r"(^|[-_.])(mmproj|imatrix)([-_.]|$)")


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is an existing file with the suffix of GGUF."""
    return path.suffix.lower() == ".gguf" and path.is_file()


def ggufs_in(folder: Path) -> list[Path]:
    """Return the GGUF files of a folder that are language models, sorted; of split ones the first.

    Image projectors (``mmproj``) and quantization statistics (``imatrix``) are excluded.
    """
    files = (path for path in sorted(folder.iterdir()) if is_gguf(path))
    return sorted({split_files(path)[0] for path in files if not is_accessory(path.name)})


def is_accessory(name: str) -> bool:
    """Return whether a GGUF file's name marks it as an accessory of a model, not a model."""
    return _ACCESSORY.search(name.lower()) is not None


def split_files(path: Path) -> list[Path]:
    """Return, in order, all files of the checkpoint that contains the file ``path``.

    Raises:
        CheckpointError: the number of files in the name is out of range.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, count = match.groups()
    if not 0 < int(count) <= _MAX_SPLITS:
        raise CheckpointError(f"its name implies {int(count)} files", file=str(path))
    return [path.with_name(f"{stem}-{i:05}-of-{count}.gguf") for i in range(1, int(count) + 1)]


def read_gguf(path: Path) -> GGUFFile:
    """Read metadata and tensors of one file; the tensors are mapped, not read.

    Raises:
        CheckpointError: the file is missing, truncated or inconsistent.
        UnsupportedModel: its version or a tensor's type is not supported.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise CheckpointError(f"has {size} bytes, too few for a GGUF file", file=str(path))
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(
                f"cannot map its {bytes_text(size)} ({error.strerror}), "
                f"{bytes_text(address_space_left())} of address space are left; raise ulimit -v, or limit "
                "memory with a container instead, which counts only memory in use",
                file=str(path),
            ) from error
    return _Parser(path, mapped).file()


class _Parser:
    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._bytes = mapped
        self._at = 0
        self._field = "header"

    def file(self) -> GGUFFile:
        tensor_count, pair_count = self._start()
        metadata: dict[str, Any] = {}
        for index in range(pair_count):
            self._field = f"metadata {index}"
            key = self._text(_MAX_NAME)
            self._field = key if key.isprintable() else f"metadata {index}"
            if key in metadata:
                raise self._wrong("occurs twice")
            metadata[key] = self._value(self._number("I"))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        self._field = "general.alignment"
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment & 7:
            raise self._wrong(
                f"is {shown(alignment)}, expected a multiple of 8 up to {_MAX_ALIGNMENT}"
            )
        places = dict(self._places(tensor_count, alignment))
        start = -(-self._at // alignment) * alignment
        tensors = {name: self._tensor(name, start, *place) for name, place in places.items()}
        _check_overlap(self._path, places)
        return GGUFFile(self._path, metadata, tensors, self._at, self._bytes)

    def _start(self) -> tuple[int, int]:
        if self._bytes[:4] != MAGIC:
            raise self._wrong(f"begins with {self._bytes[:4]!r}, not {MAGIC!r}")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise UnsupportedModel(f"{self._path}: big-endian files are not supported")
            raise UnsupportedModel(
                f"{self._path}: GGUF version {version} is not supported; supported: 2, 3. Convert the file "
                "with a current llama.cpp"
            )
        tensors, pairs = self._number("Q"), self._number("Q")
        for name, count, most in (
            ("tensor", tensors, _MAX_TENSORS),
            ("metadata", pairs, _MAX_PAIRS),
        ):
            if count > most or count > len(self._bytes):
                raise self._wrong(f"{name} count is {count}, more than the supported {most}")
        return tensors, pairs

    def _number(self, letter: str) -> Any:
        return self._numbers(letter, 1)[0]

    def _numbers(self, letter: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{letter}") * count
        if size > len(self._bytes) - self._at:
            raise self._wrong(
                f"needs {size} bytes, but the file has {len(self._bytes) - self._at} left"
            )
        values = struct.unpack_from(f"<{count}{letter}", self._bytes, self._at)
        self._at += size
        return values

    def _text(self, most: int = _MAX_TEXT) -> str:
        length = self._number("Q")
        left = len(self._bytes) - self._at
        if length > left or length > most:
            raise self._wrong(
                f"has a string of {length} bytes, at most {min(left, most)} are possible"
            )
        text = self._bytes[self._at : self._at + length]
        self._at += length
        return text.decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _BOOL:
            return self._number("B") != 0
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number("I"), self._number("Q"))
        raise self._wrong(f"has unknown value type {kind}")

    def _array(self, kind: int, count: int) -> list[Any]:
        if count > _MAX_ELEMENTS:
            raise self._wrong(f"has {count} elements, more than the supported {_MAX_ELEMENTS}")
        if kind in _NUMBERS:
            return list(self._numbers(_NUMBERS[kind], count))
        if kind == _BOOL:
            return [value != 0 for value in self._numbers("B", count)]
        if kind == _TEXT:
            return [self._text() for _ in range(count)]
        raise self._wrong(f"is an array of value type {kind}, which is not supported")

    def _places(
        self, count: int, alignment: int
    ) -> Iterator[tuple[str, tuple[tuple[int, ...], TensorType, int]]]:
        """Yield (name, (shape, type, offset)) of each tensor."""
        seen = set()
        for index in range(count):
            self._field = f"tensor {index}"
            name = self._text(_MAX_NAME)
            self._field = name if name.isprintable() and name else f"tensor {index}"
            if name in seen:
                raise self._wrong("occurs twice")
            seen.add(name)
            dimensions = self._number("I")
            if not 0 < dimensions <= _MAX_DIMENSIONS:
                raise self._wrong(
                    f"has {dimensions} dimensions, more than the supported {_MAX_DIMENSIONS}"
                )
            shape = tuple(reversed(self._numbers("Q", dimensions)))
            if 0 in shape or math.prod(shape) > _MAX_VALUES:
                raise self._wrong(f"bad shape {shown(list(shape))}")
            number, offset = self._number("I"), self._number("Q")
            if number not in TYPES:
                raise UnsupportedModel(
                    f"{self._path}: tensor {self._field} has type {number}, which is not supported; "
                    f"supported: {', '.join(sorted(known.name for known in TYPES.values()))}"
                )
            if shape[-1] % TYPES[number].values:
                raise self._wrong(
                    f"is {shape[-1]} wide, not a multiple of the {TYPES[number].values} values in a "
                    f"block of {TYPES[number].name}"
                )
            if offset % alignment:
                raise self._wrong(f"offset {offset} is not a multiple of the alignment {alignment}")
            yield name, (shape, TYPES[number], offset)

    def _tensor(
        self, name: str, start: int, shape: tuple[int, ...], kind: TensorType, offset: int
    ) -> GGUFTensor:
        size = math.prod(shape) // kind.values * kind.bytes
        if start + offset + size > len(self._bytes):
            self._field = name
            raise self._wrong(
                f"ends at byte {start + offset + size}, but the file has {len(self._bytes)}"
            )
        return GGUFTensor(shape, kind, start + offset, size)

    def _wrong(self, message: str) -> CheckpointError:
        return CheckpointError(message, file=str(self._path), field=self._field)


def _check_overlap(
    path: Path, places: Mapping[str, tuple[tuple[int, ...], TensorType, int]]
) -> None:
    end = 0
    for name, (shape, kind, offset) in sorted(places.items(), key=lambda item: item[1][2]):
        if offset < end:
            raise CheckpointError(
                f"begins at {offset}, within another tensor that ends at {end}",
                file=str(path),
                field=name,
            )
        end = offset + math.prod(shape) // kind.values * kind.bytes
