"""Detects whether the files of a served model have changed since it was loaded."""

import hashlib
import os
from pathlib import Path

from galley.formats.gguf_file import is_gguf, split_files


def fingerprint(folder: Path) -> str:
    """Return a digest of the names, sizes and times of a checkpoint folder's files, or of GGUF files."""
    digest = hashlib.blake2b(str(folder).encode(), digest_size=16)
    for path in split_files(folder) if is_gguf(folder) else sorted(folder.iterdir()):
        status = _status(path)
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


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
