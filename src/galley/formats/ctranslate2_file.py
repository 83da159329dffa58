"""The file ``model.bin`` of a CTranslate2 model: a header, a table of variables, aliases for some of them.

All numbers are little-endian. A string is its length including a closing NUL, in 16 bits, then its bytes
and the NUL. The layout is that of ``ctranslate2/specs/model_spec.py``, version 4 and later.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import open_file

MODEL_FILE: Final = "model.bin"

Bytes = npt.NDArray[np.uint8]

_VERSIONS: Final = range(4, 7)
"""Versions of the layout; 6 is current, and 5 and 4 have the same layout."""
_TYPES: Final = (("F32", 4), ("I8", 1), ("I16", 2), ("I32", 4), ("F16", 2), ("BF16", 2))
"""Element type number -> type and its bytes."""
_MAX_VARIABLES: Final = 1 << 16
_MAX_DIMENSIONS: Final = 8
_MAX_SPEC: Final = 64
"""Maximum length of the name of the model's type; known names are less than half as long."""


class Variable(NamedTuple):
    """A tensor of the file; ``data`` is uint8, 1-D, a view of the mapped file at any address."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class CTranslate2File:
    """The contents of a file.

    Attributes:
        spec: the type of model, such as "WhisperSpec".
        variables: by name.
        aliases: further names -> those in ``variables``.
        header: bytes that define all of the above except the variables' values.
    """

    path: Path
    spec: str
    variables: Mapping[str, Variable] = field(repr=False)
    aliases: Mapping[str, str] = field(repr=False)
    header: bytes = field(repr=False)

    def wrong(self, name: str, what: str) -> CheckpointError:
        """Return the error with the message ``what`` about a variable."""
        return CheckpointError(what, file=str(self.path), field=name)

    def get(self, name: str) -> Variable:
        """Return a variable by its name or alias. Raises CheckpointError if there is none."""
        found = self.variables.get(self.aliases.get(name, name))
        if found is None:
            raise self.wrong(name, "tensor is missing")
        return found

    def names(self) -> list[str]:
        """Return all names, including those that several tensors of equal values share."""
        return [*self.variables, *self.aliases]

    def whole(self, name: str) -> int:
        """Return the value of an integer scalar variable. Raises CheckpointError if it is anything else."""
        found = self.get(name)
        types: dict[str, Any] = {"I8": np.int8, "I16": np.int16, "I32": np.int32}
        if found.shape or found.dtype not in types:
            raise self.wrong(name, "is not a single whole number")
        return int(found.data.view(types[found.dtype])[0])


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder has a CTranslate2 model: a ``model.bin`` whose header names its type."""
    path = folder / MODEL_FILE
    if not path.is_file():
        return False
    try:
        with open_file(path) as file:
            return _Reader(path, file).spec().endswith("Spec")
    except (CheckpointError, UnsupportedModel):
        return False


def read_ctranslate2(path: Path) -> CTranslate2File:
    """Read the file's table; values are mapped and not read.

    Raises:
        CheckpointError: the file is missing or truncated, or its table is wrong.
        UnsupportedModel: its layout has an unsupported version.
    """
    with open_file(path) as file:
        return _Reader(path, file).read()


class _Reader:
    """Reads a file's numbers in turn; never more than the file has."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._header = bytearray()

    def spec(self) -> str:
        """Read the type of model, with which the header begins."""
        version = self._number("I")
        if version not in _VERSIONS:
            raise UnsupportedModel(
                f"{self._path}: has version {version} of CTranslate2's layout, supported are "
                f"{_VERSIONS[0]} to {_VERSIONS[-1]}; convert the model again"
            )
        spec = self._text()
        if len(spec) > _MAX_SPEC or not spec.isidentifier():
            raise self._wrong("is not a CTranslate2 model")
        return spec

    def read(self) -> CTranslate2File:
        """Read the whole file."""
        spec = self.spec()
        self._number("I")  # revision of the spec; renamed variables are reported as missing
        places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for _ in range(self._count("variables")):
            name, dtype, shape, begin, size = self._variable()
            if name in places:
                raise self._wrong("occurs twice", name)
            places[name] = (dtype, shape, begin, size)
        aliases = {self._text(): self._text() for _ in range(self._count("aliases"))}
        if self._file.tell() != self._size:
            raise self._wrong(
                f"has {self._size} bytes, but its tables end after {self._file.tell()}: trailing data"
            )
        for alias, name in aliases.items():
            if name not in places:
                raise self._wrong(f"is an alias of {name}, which is missing", alias)
        mapped = np.memmap(self._path, dtype=np.uint8, mode="r")
        variables = {
            name: Variable(name, dtype, shape, mapped[begin : begin + size])
            for name, (dtype, shape, begin, size) in places.items()
        }
        return CTranslate2File(self._path, spec, variables, aliases, bytes(self._header))

    def _variable(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Read name, element type, shape, and the offset and byte size of the values."""
        name, dimensions = self._text(), self._number("B")
        if dimensions > _MAX_DIMENSIONS:
            raise self._wrong(f"has {dimensions} dimensions", name)
        shape = tuple(self._number("I") for _ in range(dimensions))
        number, size, begin = self._number("B"), self._number("I"), self._file.tell()
        if number >= len(_TYPES):
            raise self._wrong(f"has unknown element type {number}", name)
        dtype, width = _TYPES[number]
        if math.prod(shape) * width != size or size > self._size - begin:
            raise self._wrong(
                f"is {dtype} {list(shape)} in {size} bytes, but {self._size - begin} are left", name
            )
        self._file.seek(begin + size)
        return name, dtype, shape, begin, size

    def _count(self, what: str) -> int:
        count = self._number("I")
        if count > _MAX_VARIABLES:
            raise self._wrong(f"has {count} {what}, more than the supported {_MAX_VARIABLES}")
        return count

    def _number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0])

    def _text(self) -> str:
        text = self._take(self._number("H"))
        try:
            return text.removesuffix(b"\0").decode()
        except UnicodeDecodeError as error:
            raise self._wrong(f"has a name that is not UTF-8: {error}") from None

    def _take(self, count: int) -> bytes:
        try:
            data = self._file.read(count)
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}") from error
        if len(data) < count:
            raise self._wrong("is truncated: it ends within its tables")
        self._header += data
        return data

    def _wrong(self, what: str, name: str | None = None) -> CheckpointError:
        return CheckpointError(what, file=str(self._path), field=name)
