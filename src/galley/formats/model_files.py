"""A digest of all files of a model, which identifies what is computed from them."""

import glob
import hashlib
from pathlib import Path

import msgspec

from galley.formats.gguf_file import is_gguf, split_files
from galley.machine import cache_folder


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
    if is_gguf(folder):
        files = list(split_files(folder))
    elif folder.is_dir():
        places = (folder, *_modules(folder))
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
    else:
        # An ONNX file, whose weights may be in others that begin with its name.
        files = sorted(folder.parent.glob(f"{glob.escape(folder.stem)}*"))
    memory = _memory_of(folder)
    known = _remembered(memory)
    base = folder if folder.is_dir() else folder.parent
    names = {str(path.relative_to(base)): path for path in files}
    found = {name: _state_of(path, known.get(name)) for name, path in names.items()}
    if memory is not None and found != known:
        _remember(memory, found)
    content = {name: state.digest for name, state in found.items()}
    return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).digest()


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
        partial = memory.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(found))
        partial.replace(memory)
    except OSError:
        return
