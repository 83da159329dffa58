"""Files that are complete or absent, whatever interrupts their writing."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PARTIAL: Final = ".partial"
"""Suffix of a file that is being written, or whose writer was killed."""


@contextmanager
def complete_or_absent(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a new name in the same folder, and rename that file to ``path`` if the block raises no error.

    Args:
        path: the file to write or replace.
        sync: wait until the file and its name are on the disk, so that they outlast a loss of power.

    Raises:
        OSError: the file cannot be written. As after any other error, no partial file is left.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        yield partial
        if sync:
            to_disk(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if sync:
        to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
