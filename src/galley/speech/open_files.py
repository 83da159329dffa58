"""Recordings as open files, whose descriptors can be sent to another process."""

import io
import os
import stat
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Final

from galley.errors import AudioError
from galley.machine import nameless_file
from galley.speech.sources import Source

_COPIED: Final = 1024 * 1024
"""Bytes that are copied at a time."""


class OpenFile:
    """A file that another process can read.

    Attributes:
        number: its descriptor.
        offset: the offset at which the recording begins.
    """

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        self.offset = offset

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.number)


def open_file(source: Source) -> OpenFile:
    """Open a recording's source, or a copy of it if no descriptor leads to its bytes.

    Raises:
        AudioError: it is a path that cannot be opened, or not that of a regular file.
    """
    if isinstance(source, bytes):
        return _copied(io.BytesIO(source))
    if not isinstance(source, str | Path):
        return _of_file(source)
    try:
        number = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # for pipes
    except OSError as error:
        raise AudioError(f"cannot read {source}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise AudioError(f"cannot read {source}: it is not a regular file")
    return OpenFile(number, 0)


def _of_file(file: BinaryIO) -> OpenFile:
    """Return the descriptor of a file on disk, or of a copy for any other file."""
    if isinstance(file, SpooledTemporaryFile):
        on_disk = file.name is not None
    else:
        on_disk = isinstance(getattr(file, "raw", file), io.FileIO)
    if not on_disk:
        return _copied(file)
    if file.writable():
        file.flush()
    return OpenFile(os.dup(file.fileno()), file.tell())


def _copied(file: BinaryIO) -> OpenFile:
    """Return the descriptor of a copy in memory, which the decoder can read."""
    start = file.tell()
    number = nameless_file("recording")
    try:
        with os.fdopen(os.dup(number), "wb") as copy:
            while part := file.read(_COPIED):
                copy.write(part)
    except BaseException:
        os.close(number)
        raise
    file.seek(start)
    return OpenFile(number, 0)
