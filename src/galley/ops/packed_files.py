"""Files of packed matrices in the cache folder: their format, and keeping house among them.

A file is a magic number, the length and the SHA-256 of a JSON header, the header, and the matrices, one
after another. It is written beside its place and renamed, so what has the name is whole. To open one reads
its header alone; the matrices are mapped.
"""

import hashlib
import mmap
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from galley import _native

Bytes = npt.NDArray[np.uint8]
Names = tuple[str, ...]
"""Of the tensors whose rows are a matrix' outputs, in their order."""

FOLDER_VARIABLE: Final = "GALLEY_CACHE_DIR"
ALIGNMENT: Final = 64
"""Bytes; the kernels want matrices on such a boundary."""
_SUFFIX: Final = ".packed"
_PARTIAL_SUFFIX: Final = ".partial"
_PARTIAL_SECONDS: Final = 3600.0
"""Nobody is still writing a file that old."""
_MAGIC: Final = b"galleypk"
_LENGTH_BYTES: Final = 8
_PREFIX_BYTES: Final = len(_MAGIC) + _LENGTH_BYTES + hashlib.sha256().digest_size
_SEGMENTS: Final = 1000
"""Of one write; the system takes 1024."""
_HUB_FOLDER: Final = re.compile(r"/models--([^/]+)/snapshots/([^/]{1,7})")


class Entry(msgspec.Struct, frozen=True):
    """A matrix: ``size`` bytes, ``offset`` bytes after the header."""

    names: Names
    offset: int
    size: int


class Header(msgspec.Struct, frozen=True):
    """What a file holds.

    Attributes:
        layout_version: the writer's ``_native.LAYOUT_VERSION``.
        folder: of the checkpoint.
        fingerprint: of its weight files.
        kind: float32, bf16, int8 or int4.
        entries: one after another, without gaps.
    """

    layout_version: int
    folder: str
    fingerprint: str
    kind: str
    entries: tuple[Entry, ...]

    @property
    def model(self) -> str:
        """The hub id, or the folder."""
        hub = _HUB_FOLDER.search(self.folder)
        return f"{hub[1].replace('--', '/')}@{hub[2]}" if hub else self.folder


class UnusablePackedFile(Exception):
    """It is damaged, or another version wrote it; the message says which."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache folder.

    Attributes:
        header: None if the file cannot be used.
        flaw: why it cannot.
        size: bytes.
        used: when it was last opened or written, in Unix time.
    """

    path: Path
    header: Header | None
    flaw: str
    size: int
    used: float


def packed_folder() -> Path:
    """Where packed weights are kept: below GALLEY_CACHE_DIR, else in the user's cache folder.

    Raises:
        OSError: neither is known.
    """
    if own := os.environ.get(FOLDER_VARIABLE):
        return Path(own).absolute() / "packed"
    # The XDG specification ignores relative paths.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        raise OSError("this user has no home folder")
    return base / "galley" / "packed"


def file_path(folder: Path, header: Header) -> Path:
    """One path for each checkpoint and kind, readable to people."""
    key = hashlib.sha256(f"{header.fingerprint} {header.kind}".encode()).hexdigest()[:16]
    model = re.sub(r"[^A-Za-z0-9.]+", "-", Path(header.model).name)[:80].strip("-.") or "model"
    return folder / f"{model}-{header.kind}-{key}{_SUFFIX}"


def cached_files(folder: Path) -> list[CachedFile]:
    """All in ``folder``, last used first."""
    files = [file for path in folder.glob(f"*{_SUFFIX}") for file in _look_at(path)]
    return sorted(files, key=lambda file: -file.used)


def _look_at(path: Path) -> Iterator[CachedFile]:
    header, flaw = None, ""
    with suppress(FileNotFoundError):  # another process removed it
        status = path.stat()
        try:
            with path.open("rb") as file:
                header, _ = _read_header(file)
        except UnusablePackedFile as error:
            flaw = str(error)
        yield CachedFile(path, header, flaw, status.st_size, status.st_mtime)


def remove_partial_files(folder: Path) -> None:
    """What killed processes left behind."""
    for path in folder.glob(f"*{_PARTIAL_SUFFIX}"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _PARTIAL_SECONDS:
                path.unlink()


def map_file(path: Path) -> tuple[Header, Bytes]:
    """The header, and a read-only view of all matrices.

    The file is stamped as used. Pages come from the system's cache of files when they are touched, huge
    ones where the file system keeps such (see :func:`write_file`): memory that other processes and later
    starts share. Reading into own memory instead would always give huge pages, for the time of a copy at
    each start and twice the room.

    Raises:
        UnusablePackedFile: see there.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header, start = _read_header(file)
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
    with suppress(OSError):  # costs speed alone
        mapped.madvise(mmap.MADV_HUGEPAGE)
    with suppress(OSError):  # a folder that cannot be written
        os.utime(path)
    return header, np.frombuffer(mapped, np.uint8, offset=start)


def _read_header(file: BinaryIO) -> tuple[Header, int]:
    """The header and where the matrices begin."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_PREFIX_BYTES)
    length = int.from_bytes(prefix[len(_MAGIC) :][:_LENGTH_BYTES], "little")
    start = -(-(_PREFIX_BYTES + length) // ALIGNMENT) * ALIGNMENT
    if not prefix.startswith(_MAGIC) or start > size:
        raise UnusablePackedFile("is damaged: it does not begin as such a file")
    text = file.read(length)
    if hashlib.sha256(text).digest() != prefix[-hashlib.sha256().digest_size :]:
        raise UnusablePackedFile("is damaged: its header has another checksum")
    try:
        header = msgspec.json.decode(text, type=Header)
    except msgspec.DecodeError as error:
        raise UnusablePackedFile("was written by another version") from error
    if header.layout_version != _native.LAYOUT_VERSION:
        raise UnusablePackedFile("was written by another version")
    if start + sum(entry.size for entry in header.entries) != size:
        raise UnusablePackedFile("is damaged: its size is not what its header says")
    return header, start


def write_file(path: Path, header: Header, matrices: Sequence[Bytes]) -> None:
    """Atomically: no reader ever sees a part of it, nor does one after a power failure.

    Raises:
        OSError: no room, no leave; nothing is left behind.
    """
    text = msgspec.json.encode(header)
    start = _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(text).digest()
    start += text
    start += bytes(-len(start) % ALIGNMENT)
    partial = path.with_name(f".{secrets.token_hex(8)}{_PARTIAL_SUFFIX}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # A full disk is known at once, before it is filled.
        os.posix_fallocate(descriptor, 0, len(start) + sum(m.nbytes for m in matrices))
        _write_all(descriptor, [memoryview(start), *(m.data for m in matrices)])
        os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def _write_all(descriptor: int, parts: list[memoryview]) -> None:
    """In as few writes as can be: only within one write do file systems make pages as large as huge
    pages, and only those are mapped as such later. A write for each matrix leaves none."""
    while parts:
        written = os.writev(descriptor, parts[:_SEGMENTS])
        while parts and written >= parts[0].nbytes:
            written -= parts.pop(0).nbytes
        if written:
            parts[0] = parts[0][written:]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
