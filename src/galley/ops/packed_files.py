"""Files of packed matrices in the cache folder: their format and their removal.

A packed file consists of a magic number, the length and the SHA-256 of a JSON header, the header, and the
matrices, one after another. It is written under a temporary name in the same folder and then renamed, so a
file with the final name is complete. Opening one reads only its header; the matrices are mapped. A use is a
small file that records, for a checkpoint folder in its present state, which packed file holds its weights.
"""

import hashlib
import mmap
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from galley.files import PARTIAL
from galley.machine import cache_folder

Bytes = npt.NDArray[np.uint8]
Names = tuple[str, ...]
"""Names of the tensors whose rows are the outputs of a matrix, in order."""

ALIGNMENT: Final = 64
"""Alignment of matrices in bytes, required by the kernels."""
SUFFIX: Final = ".packed"
_MAGIC: Final = b"galleypk"
_LENGTH_BYTES: Final = 8
_PREFIX_BYTES: Final = len(_MAGIC) + _LENGTH_BYTES + hashlib.sha256().digest_size
_WIDEST_CHECKSUM: Final = 2**32 - 1
_CHECKED_BYTES: Final = 1 << 20
_WRITE_BYTES: Final = 2 << 20
"""Bytes per write: a huge page."""
_HUB_FOLDER: Final = re.compile(r"/models--([^/]+)/snapshots/([^/]{1,7})")


class Key(NamedTuple):
    """The content of a packed matrix: these tensors, stored as this type (``str`` of a WeightKind)."""

    names: Names
    kind: str


class Entry(msgspec.Struct, frozen=True):
    """A matrix in a file: ``size`` bytes with this CRC-32, ``offset`` bytes after the header."""

    names: Names
    kind: str
    offset: int
    size: int
    checksum: int

    @property
    def key(self) -> Key:
        """The content of the matrix."""
        return Key(self.names, self.kind)


class Header(msgspec.Struct, frozen=True):
    """The content of a packed file.

    Attributes:
        layout_version: the writer's ``_native.LAYOUT_VERSION``.
        folder: folder of the checkpoint that the writer packed.
        outline, content: those of its weight files; see :class:`galley.formats.checkpoint.Checkpoint`.
        kind: weight type that dense matrices were converted to, except for those with a separately chosen
            type.
        entries: one after another, without gaps.
    """

    layout_version: int
    folder: str
    outline: str
    content: str
    kind: str
    entries: tuple[Entry, ...]

    @property
    def model(self) -> str:
        """The model's hub id, or else its folder."""
        hub = _HUB_FOLDER.search(self.folder)
        return f"{hub[1].replace('--', '/')}@{hub[2]}" if hub else self.folder


class PackedFile(NamedTuple):
    """An open packed file.

    Attributes:
        header: the content of the file.
        data: read-only view of the matrices, without those at the end that are read when they are used.
        start: offset of the first matrix, in bytes.
        file: the open file, which can still be read after its name is removed.
    """

    header: Header
    data: Bytes
    start: int
    file: BinaryIO

    def matrix(self, entry: Entry) -> Bytes | None:
        """Return the bytes of the entry's matrix, or None if they are not mapped."""
        end = entry.offset + entry.size
        return self.data[entry.offset : end] if end <= len(self.data) else None

    def checksum(self, entry: Entry) -> int:
        """Compute the present checksum of the entry's bytes; see :func:`checksum`."""
        if (mapped := self.matrix(entry)) is not None:
            return checksum(mapped)
        found, begin = 0, self.start + entry.offset
        for at in range(begin, begin + entry.size, _CHECKED_BYTES):
            size = min(_CHECKED_BYTES, begin + entry.size - at)
            found = zlib.crc32(os.pread(self.file.fileno(), size, at), found)
        return found


class UnusablePackedFile(Exception):
    """A packed file that is damaged or was written by another version; the message says which."""


def packed_folder() -> Path:
    """Return the folder of packed weights, in the cache folder.

    Raises:
        OSError: no cache folder is known.
    """
    return cache_folder() / "packed"


def file_path(folder: Path, header: Header) -> Path:
    """Return the path for the header's content and weight type, with a readable file name."""
    model = re.sub(r"[^A-Za-z0-9.]+", "-", Path(header.model).name)[:80].strip("-.") or "model"
    return folder / f"{model}-{header.kind}-{header.content[:16]}{SUFFIX}"


def map_file(path: Path, apart: frozenset[Key] = frozenset()) -> PackedFile:
    """Open a file and map its matrices, except for those of ``apart`` at the end of the file.

    The file's time of use is updated. Pages come from the page cache when they are touched, as huge pages
    where the file system has them (see :func:`write_file`); other processes and later starts share this
    memory. Reading into private memory instead would always give huge pages, but would need the time of a
    copy at each start and twice the memory.

    Raises:
        UnusablePackedFile: it is damaged, or another version wrote it.
        OSError: it cannot be read.
    """
    file = path.open("rb")
    try:
        header, start = read_header(file)
        ends = [entry.offset + entry.size for entry in header.entries if entry.key not in apart]
        size = start + max(ends, default=0)
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
    except BaseException:
        file.close()
        raise
    if hasattr(mmap, "MADV_HUGEPAGE"):  # of Linux
        with suppress(OSError):  # a failure only costs speed
            mapped.madvise(mmap.MADV_HUGEPAGE)
    with suppress(OSError):  # the folder may be read-only
        os.utime(path)
    return PackedFile(header, np.frombuffer(mapped, np.uint8, offset=start), start, file)


def read_header(file: BinaryIO) -> tuple[Header, int]:
    """Read the header and return it with the offset of the first matrix."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_PREFIX_BYTES)
    length = int.from_bytes(prefix[len(_MAGIC) :][:_LENGTH_BYTES], "little")
    start = -(-(_PREFIX_BYTES + length) // ALIGNMENT) * ALIGNMENT
    if not prefix.startswith(_MAGIC) or start > size:
        raise UnusablePackedFile("is damaged: wrong magic bytes")
    text = file.read(length)
    if hashlib.sha256(text).digest() != prefix[-hashlib.sha256().digest_size :]:
        raise UnusablePackedFile("is damaged: the checksum of its header is wrong")
    try:
        header = msgspec.json.decode(text, type=Header)
    except msgspec.DecodeError as error:
        raise UnusablePackedFile("was written by another version") from error
    # Imported here: others keep files in this folder where there are no native kernels.
    from galley import _native

    if header.layout_version != _native.LAYOUT_VERSION:
        raise UnusablePackedFile("was written by another version")
    if start + sum(entry.size for entry in header.entries) != size:
        raise UnusablePackedFile("is damaged: its size does not match its header")
    return header, start


def write_file(path: Path, header: Header, matrices: Iterable[Bytes]) -> None:
    """Write a packed file atomically: no reader ever sees a part of it, even after a power failure.

    Args:
        path: path of the file.
        header: its header; the checksums in its entries are not known yet.
        matrices: the matrices of the entries, in order; each is requested after the previous is written.

    Raises:
        OSError: the disk is full or permission is missing; no partial file is left.
    """
    sums = [_WIDEST_CHECKSUM] * len(header.entries)
    start = _beginning(header, sums, 0)

    def parts() -> Iterator[memoryview]:
        yield memoryview(start)
        for i, matrix in enumerate(matrices):
            sums[i] = checksum(matrix)
            yield matrix.data

    size = len(start) + sum(entry.size for entry in header.entries)
    with _written(path, size) as descriptor:
        _write_all(descriptor, parts())
        os.pwrite(descriptor, _beginning(header, sums, len(start)), 0)


def _beginning(header: Header, checksums: Sequence[int], size: int) -> bytes:
    """Return the bytes before the matrices, padded with spaces after the JSON to at least ``size``."""
    pairs = zip(header.entries, checksums, strict=True)
    entries = tuple(msgspec.structs.replace(entry, checksum=known) for entry, known in pairs)
    text = msgspec.json.encode(msgspec.structs.replace(header, entries=entries))
    text += b" " * (max(size, _PREFIX_BYTES + len(text)) - _PREFIX_BYTES - len(text))
    text += b" " * (-(_PREFIX_BYTES + len(text)) % ALIGNMENT)
    return (
        _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(text).digest() + text
    )


def checksum(matrix: Bytes) -> int:
    """Compute the CRC-32, which finds errors of a disk or its cables, such as a wrong bit or lost block."""
    found = 0
    for at in range(0, len(matrix), _CHECKED_BYTES):
        found = zlib.crc32(matrix[at : at + _CHECKED_BYTES].data, found)  # releases the GIL
    return found


def write_atomically(path: Path, parts: list[memoryview]) -> None:
    """Write the parts, one after another, to a file that appears at ``path`` only when it is complete.

    Raises:
        OSError: the disk is full or permission is missing; no partial file is left.
    """
    with _written(path, sum(part.nbytes for part in parts)) as descriptor:
        _write_all(descriptor, parts)


@contextmanager
def _written(path: Path, size: int) -> Iterator[int]:
    """Yield a descriptor of a new file, which is renamed to ``path`` if the block raises no error."""
    partial = path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Reserve the space first, so that a full disk fails before anything is written.
        if hasattr(os, "posix_fallocate"):  # not macOS
            os.posix_fallocate(descriptor, 0, size)
        yield descriptor
        os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def _write_all(descriptor: int, parts: Iterable[memoryview]) -> None:
    """Write the parts in whole huge pages.

    The page cache only uses a huge page, which is later mapped as one, for data that a single write takes
    from one piece of memory.
    """
    buffer, filled = memoryview(bytearray(_WRITE_BYTES)), 0
    for part in parts:
        while part:
            taken = min(len(part), _WRITE_BYTES - filled)
            buffer[filled : filled + taken] = part[:taken]
            part, filled = part[taken:], filled + taken
            if filled == _WRITE_BYTES:
                _write_whole(descriptor, buffer)
                filled = 0
    _write_whole(descriptor, buffer[:filled])


def _write_whole(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
