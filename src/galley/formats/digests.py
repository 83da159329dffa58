"""Hashes of weight files, by which a cache knows what its entries were made of."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError
from galley.formats.json_file import open_file


def content_hash(paths: Iterable[Path]) -> str:
    """Of the files' names and all their bytes: the same wherever a copy lies. Reads them.

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
    """Of the files' names, sizes and headers: differs only if :func:`content_hash` does."""
    digest = hashlib.sha256()
    for path, header in headers:
        known = (path.name, path.stat().st_size, len(header))
        digest.update(json.dumps(known).encode() + header)
    return digest.hexdigest()


def state(headers: Iterable[tuple[Path, bytes]]) -> str:
    """Another one whenever a file was written, replaced or moved here; of headers and times.

    The time of a file's last change of any kind (ctime) is among them because no program sets it: tools
    that preserve or fix modification times would otherwise pass new weights of the same shape for the old.
    """
    digest = hashlib.sha256()
    for path, header in headers:
        status = path.stat()
        known = (path.name, status.st_size, len(header), status.st_mtime_ns, status.st_ctime_ns)
        digest.update(json.dumps(known).encode() + header)
    return digest.hexdigest()


def combined(digest: str, content: Mapping[str, Any]) -> str:
    """Of a hash and a JSON object that says how to read what it is of."""
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(f"{digest}\0{text}".encode("utf-8", "backslashreplace")).hexdigest()
