"""Digests of a model's files, which identify what is computed from them."""

import hashlib
import os
import re
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

import msgspec

from galley.files import complete_or_absent
from galley.formats.gguf_file import is_gguf, split_files
from galley.machine import cache_folder

_LOCATION: Final = re.compile(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
"""The protobuf entry by which a tensor in an ONNX file names the file with its values: its key, and the
type and length of its value."""

_SAMPLES: Final = 2048
"""Pieces that are read of a large file. They are closer together than a large matrix is long."""

_SAMPLE_BYTES: Final = 4096


def files_of_file(file: Path) -> list[Path]:
    """Return the files of a model that is one file: itself, and those with its weights.

    These are the files in its folder that begin with its name, and those that an ONNX file names as
    external data.

    Raises:
        OSError: the file cannot be read.
    """
    alike = (path for path in file.parent.iterdir() if path.name.startswith(file.stem))
    return sorted({*alike, *(_external_data(file) if file.suffix == ".onnx" else ())})


def _external_data(file: Path) -> set[Path]:
    """Return the files in the folder of an ONNX file, or below, that have values of its tensors.

    The entries that name them are searched for in its bytes: that takes no library, and what only looks
    like an entry names no file.
    """
    if not file.stat().st_size:
        return set()
    folder, names = file.parent, set[bytes]()
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
        for found in _LOCATION.finditer(data):
            low, high = found[1][0], found[1][1:]
            length = (low & 0x7F) + (high[0] << 7 if high else 0)
            names.add(data[found.end() : found.end() + length])
    paths = {folder / os.fsdecode(name) for name in names if b"\0" not in name}
    inside = folder.resolve()
    return {path for path in paths if path.resolve().is_relative_to(inside) and path.is_file()}


class _Module(msgspec.Struct):
    """An element of sentence-transformers' ``modules.json``; ``path``: its folder."""

    path: str = ""


def _modules(folder: Path) -> list[Path]:
    """Return the folders of an embedding model's modules, whose weights are part of the model."""
    try:
        modules = msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[_Module])
    except (OSError, RecursionError, msgspec.MsgspecError):
        return []
    names = sorted({module.path for module in modules} - {""})
    return [folder / name for name in names if Path(name).name == name and (folder / name).is_dir()]


class _FileState(msgspec.Struct, frozen=True):
    """A file as its digest was computed; ctime is included because no program sets it."""

    size: int
    mtime: int
    ctime: int
    digest: str


def files_digest(folder: Path) -> bytes:
    """Return a digest of the names and contents of a model's files.

    All of them are read, unless their digests are remembered: a second for each gigabyte or so.

    Args:
        folder: a checkpoint's folder, or a model's file.

    Raises:
        OSError: a file cannot be read.
    """
    memory = _memory_of(folder)
    known = _remembered(memory)
    files = _files(folder)
    found = {name: _state_of(path, known.get(name)) for name, path in files.items()}
    if memory is not None and found != known:
        _remember(memory, found)
    content = {name: state.digest for name, state in found.items()}
    return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).digest()


def samples_digest(folder: Path) -> bytes:
    """Return a digest of the names and sizes of a model's files, and of some of their contents.

    Of each file that is not small, pieces at equal distances are read: enough to tell two models of one
    shape apart, in the time of a few reads.

    Args:
        folder: as for :func:`files_digest`.

    Raises:
        OSError: a file cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    for name, path in sorted(_files(folder).items()):
        size = path.stat().st_size
        found.update(msgspec.json.encode((name, size)))
        with path.open("rb") as file:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                found.update(file.read())
                continue
            for i in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                found.update(file.read(_SAMPLE_BYTES))
    return found.digest()


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a model by their names relative to its folder."""
    if is_gguf(folder):
        files = list(split_files(folder))
    elif folder.is_dir():
        places = (folder, *_modules(folder))
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
    else:
        files = files_of_file(folder)
    base = folder if folder.is_dir() else folder.parent
    return {str(path.relative_to(base)): path for path in files}


def _state_of(path: Path, known: _FileState | None) -> _FileState:
    status = path.stat()
    state = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known is not None and (known.size, known.mtime, known.ctime) == state:
        return known
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return _FileState(*state, content)


def _memory_of(folder: Path) -> Path | None:
    """Return the file that remembers the digests of a model's files; None without a cache folder."""
    try:
        name = hashlib.blake2b(str(folder.absolute()).encode(), digest_size=16).hexdigest()
        return cache_folder() / "digests" / f"{name}.json"
    except OSError:
        return None


def _remembered(memory: Path | None) -> dict[str, _FileState]:
    try:
        text = b"{}" if memory is None else memory.read_bytes()
        return msgspec.json.decode(text, type=dict[str, _FileState])
    except (OSError, msgspec.MsgspecError):
        return {}


def _remember(memory: Path, found: dict[str, _FileState]) -> None:
    """Write the digests down; if that fails, they are computed again at the next start."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with complete_or_absent(memory) as partial:
            partial.write_bytes(msgspec.json.encode(found))
    except OSError:
        return
