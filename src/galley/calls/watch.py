"""The recordings of a folder, those that are still being written left out."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger("galley.calls")

SUFFIXES: Final = frozenset(
    f".{name}"
    for name in (
        "wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "mp4", "aac", "webm", "mkv", "aiff", "aif",
        "caf", "au", "w64", "wma", "avi", "ts",
    )
)  # fmt: skip
"""Endings of recordings in a folder; a file that is named on its own may have any."""
_SETTLED_SECONDS: Final = 2.0
"""A file that has not changed for as long is complete."""


def recordings(folder: Path, *, settled: bool, results: Path) -> Iterator[tuple[str, Path]]:
    """Yield (call id, recording) for each recording in a folder and its subfolders, by name.

    Args:
        folder: the folder; hidden files and folders are left out, and names that are not UTF-8.
        settled: leave out files that changed within the last two seconds.
        results: the folder of results, which is left out, too: it has redacted recordings.
    """
    made = results.resolve()
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(
            name for name in folders if _is_name(name) and (here / name).resolve() != made
        )
        for name in sorted(filter(_is_name, names)):
            path = here / name
            if (
                path.suffix.lower() in SUFFIXES
                and path.is_file()
                and not (settled and _is_new(path))
            ):
                yield path.relative_to(folder).as_posix(), path


def _is_name(name: str) -> bool:
    """Return whether a name is one of a call: neither hidden nor invalid UTF-8, which JSON cannot have."""
    try:
        name.encode()
    except UnicodeEncodeError:
        log.warning("%r is left out: its name is not UTF-8; rename it", name)
        return False
    return not name.startswith(".")


def _is_new(path: Path) -> bool:
    """Return whether a file has just changed, or is gone."""
    try:
        return time.time() - path.stat().st_mtime < _SETTLED_SECONDS
    except FileNotFoundError:
        return True
