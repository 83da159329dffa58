"""The files of a served model: where they are, and whether they have changed since it was loaded."""

import hashlib
import os
from pathlib import Path

from galley.formats.gguf_file import is_gguf, split_files
from galley.formats.model_files import files_of_file
from galley.formats.source import resolve_model
from galley.gateway.daemon_thread import in_daemon_thread
from galley.settings.config import Settings


async def located(settings: Settings) -> Path:
    """Return a model's folder or file, after downloading it if it is not on this machine.

    Raises:
        ModelError: there is no such model, or it cannot be downloaded.
    """
    model, revision = settings.model, settings.revision
    return await in_daemon_thread(lambda: resolve_model(model, revision=revision))


def fingerprint(folder: Path) -> str:
    """Return a digest of the names, sizes and times of a checkpoint's files.

    They are those in a folder, the parts of a GGUF file, or another file and those with its weights.
    """
    digest = hashlib.blake2b(str(folder).encode(), digest_size=16)
    for path in _files(folder):
        status = _status(path)
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if is_gguf(path):
        return split_files(path)
    if path.is_file():
        return files_of_file(path)
    return sorted(path.iterdir())


def _status(path: Path) -> os.stat_result:
    """Return the status of the file, or of a broken link; reading it later reports the error."""
    try:
        return path.stat()
    except OSError:
        return path.lstat()


def has_fingerprint(folder: Path, files: str) -> bool:
    """Return whether the folder's files still have the fingerprint ``files``; see :func:`fingerprint`."""
    try:
        return fingerprint(folder) == files
    except OSError:
        return False
