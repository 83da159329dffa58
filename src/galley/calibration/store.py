"""Small results on disk, named by a digest of all that they depend on, beside the packed weights."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the folder.

    Attributes:
        what: for people.
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
    """Where results are kept, which need not exist.

    Raises:
        OSError: no cache folder is known.
    """
    from galley.ops.packed_files import packed_folder

    return packed_folder().parent / "calibration"


def get(name: str, kind: type[T]) -> T | None:
    """The result of that name, or None if there is none that can be read."""
    try:
        path = folder() / f"{name}{_SUFFIX}"
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        content = msgspec.convert(file.content, kind)
        os.utime(path)
    except (OSError, msgspec.MsgspecError):
        return None
    return content


def put(name: str, what: str, content: object) -> None:
    """Keep a result. A folder that cannot be written to costs time alone."""
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        partial = place / f"{name}.{secrets.token_hex(4)}.partial"
        partial.write_bytes(msgspec.json.encode(_File(what, content)))
        partial.rename(place / f"{name}{_SUFFIX}")
    except OSError:
        return


def stored() -> list[Stored]:
    """All results, last used first."""
    return sorted(_stored(), key=lambda one: -one.used)


def _stored() -> Iterator[Stored]:
    for path in folder().glob(f"*{_SUFFIX}"):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            status = path.stat()
        except (OSError, msgspec.MsgspecError):
            continue
        yield Stored(path, file.what, status.st_size, status.st_mtime)
