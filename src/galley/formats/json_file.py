"""Reading of a checkpoint's small files, apart from its weights, without numpy."""

import io
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError

MAX_JSON_BYTES: Final = 100 * 1024 * 1024
"""Maximum bytes of a JSON file or header; the longest known file, a tokenizer's, has a third."""

_MAX_DIGITS: Final = 100


def is_there(path: Path) -> bool:
    """Return whether there is a file, or a link without a target, reading of which is an error."""
    return path.exists() or path.is_symlink()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises CheckpointError if it is anything else."""
    return parse_json(read_file(path), path)


def parse_json(text: bytes, path: Path, part: str = "") -> dict[str, Any]:
    """Parse a JSON object from the bytes of a file, or of a named ``part`` of it.

    If a name is repeated in an object, the last value is used, as in Python and thus in transformers. In a
    part, such as the header with the places of tensors, it is an error.

    Raises:
        CheckpointError: it is anything else.
    """
    what = f"{part} " if part else ""
    try:
        pairs = _without_duplicates if part else dict
        content = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}is not JSON: {error}", file=str(path)) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{what}is not a JSON object", file=str(path))
    return content


class LongNumber:
    """Stands for a whole number with too many digits for any field; readers of the field refuse it."""

    def __init__(self, digits: int) -> None:
        self._digits = digits

    def __repr__(self) -> str:
        return f"a number of {self._digits} digits"


def _whole_number(text: str) -> int | LongNumber:
    return int(text) if len(text) <= _MAX_DIGITS else LongNumber(len(text.lstrip("-")))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:120]!r} occurs twice in one object")
    return made


def read_file(path: Path) -> bytes:
    """Read a small file of a checkpoint. Raises CheckpointError if it cannot be read or is too large."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(
                f"has {size} bytes, more than the supported {MAX_JSON_BYTES}", file=str(path)
            )
        try:
            return file.read(size)
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}", file=str(path)) from error


def open_file(path: Path) -> io.BufferedReader:
    """Open a file of a checkpoint for reading.

    Raises:
        CheckpointError: it is absent or unreadable, is not a regular file (a FIFO would never end), or is a
            symbolic link to a target outside the checkpoint.
    """
    try:
        check_link(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, RuntimeError) as error:  # path too long, NUL, a cycle of links
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot be read: {reason}", file=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError("is not a regular file", file=str(path))
    return io.BufferedReader(io.FileIO(descriptor, "rb"))


def check_link(path: Path) -> None:
    """Raise CheckpointError if a file is a link that leaves its folder.

    The hub library stores links in ``snapshots/REVISION``, to ``blobs`` next to ``snapshots``.
    """
    if not path.is_symlink():
        return
    folder, target = path.parent.resolve(), path.resolve()
    caches = [up.parent / "blobs" for up in folder.parents if up.name == "snapshots"]
    homes = [folder, *(cache.resolve() for cache in caches)]
    if not any(target.is_relative_to(home) for home in homes):
        raise CheckpointError(
            f"is a symbolic link to {target}, outside the model's folder; replace it with the file itself",
            file=str(path),
        )
