"""Whether the files of a served model have changed since it was loaded."""

import hashlib
import os
from pathlib import Path

from galley.formats.gguf_file import is_gguf, split_files


def fingerprint(folder: Path) -> str:
    """Changes with the names, sizes and times of the files in a checkpoint's folder, or of GGUF files."""
    digest = hashlib.blake2b(str(folder).encode(), digest_size=16)
    for path in split_files(folder) if is_gguf(folder) else sorted(folder.iterdir()):
        status = _status(path)
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _status(path: Path) -> os.stat_result:
    """Of the file, or of a link that leads nowhere: whoever reads that one says what is wrong."""
    try:
        return path.stat()
    except OSError:
        return path.lstat()


def has_fingerprint(folder: Path, files: str) -> bool:
    """Whether the folder's files are those of which :func:`fingerprint` made ``files``."""
    try:
        return fingerprint(folder) == files
    except OSError:
        return False
