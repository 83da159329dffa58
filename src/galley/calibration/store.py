"""Small results on disk, named by a digest of all their inputs, next to the packed weights."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from galley.files import complete_or_absent

T = TypeVar("T")

_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the folder.

    Attributes:
        what: a description for people.
        size: bytes.
        used: when it was last read or written, in Unix time.
    """

    path: Path
    what: str
    size: int
    used: float


class _File(msgspec.Struct):
    what: str
    content: Any


def folder() -> Path:
    """Return the folder of results, which need not exist.

    Raises:
        OSError: no cache folder is known.
    """
    from galley.ops.packed_files import packed_folder

    return packed_folder().parent / "calibration"


def get(name: str, kind: type[T]) -> T | None:
    """Return the result of that name, or None if there is none that can be read."""
    try:
        path = folder() / f"{name}{_SUFFIX}"
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        content = msgspec.convert(file.content, kind)
        os.utime(path)
    except (OSError, msgspec.MsgspecError):
        return None
    return content


def put(name: str, what: str, content: object) -> None:
    """Store a result. If the folder cannot be written to, nothing is stored; that costs only time."""
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        with complete_or_absent(place / f"{name}{_SUFFIX}") as partial:
            partial.write_bytes(msgspec.json.encode(_File(what, content)))
    except OSError:
        return


def stored() -> list[Stored]:
    """Return all results, the last used first."""
    return sorted(_stored(), key=lambda one: -one.used)


def _stored() -> Iterator[Stored]:
    for path in folder().glob(f"*{_SUFFIX}"):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            status = path.stat()
        except (OSError, msgspec.MsgspecError):
            continue
        yield Stored(path, file.what, status.st_size, status.st_mtime)
