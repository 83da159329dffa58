"""Hashes of weight files, by which a cache identifies the files that its entries were made from."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError
from galley.formats.json_file import open_file


def content_hash(paths: Iterable[Path]) -> str:
    """Return a hash of the files' names and all their bytes, which does not depend on their folder.

    All bytes are read.

    Raises:
        CheckpointError: a file is missing.
    """
    digest = hashlib.sha256()
    for path in paths:
        with open_file(path) as file:
            try:
                content = hashlib.file_digest(file, "sha256")
            except OSError as error:
                raise CheckpointError(
                    f"cannot be read: {error.strerror}", file=str(path)
                ) from error
        digest.update(f"{path.name}\0".encode() + content.digest())
    return digest.hexdigest()


def outline(headers: Iterable[tuple[Path, bytes]]) -> str:
    """Return a hash of the files' names, sizes and headers; differs only if :func:`content_hash` does."""
    digest = hashlib.sha256()
    for path, header in headers:
        known = (path.name, path.stat().st_size, len(header))
        digest.update(json.dumps(known).encode() + header)
    return digest.hexdigest()


def state(headers: Iterable[tuple[Path, bytes]]) -> str:
    """Return a hash, of headers and times, that changes when a file is written, replaced or moved here.

    The time of a file's last change of any kind (ctime) is included because no program sets it: tools that
    preserve or fix modification times would otherwise make new weights of the same shape look unchanged.
    """
    digest = hashlib.sha256()
    for path, header in headers:
        status = path.stat()
        known = (path.name, status.st_size, len(header), status.st_mtime_ns, status.st_ctime_ns)
        digest.update(json.dumps(known).encode() + header)
    return digest.hexdigest()


def combined(digest: str, content: Mapping[str, Any]) -> str:
    """Return a hash of a digest and a JSON object that specifies how to read the digested content."""
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(f"{digest}\0{text}".encode("utf-8", "backslashreplace")).hexdigest()
