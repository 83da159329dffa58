"""The recordings of a folder, those that are still being written left out."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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


def recordings(folder: Path, *, settled: bool) -> Iterator[tuple[str, Path]]:
    """Yield (call id, recording) for each recording in a folder and its subfolders, by name.

    Args:
        folder: the folder; hidden files and folders are left out.
        settled: leave out files that changed within the last two seconds.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if hidden or path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        if settled and time.time() - path.stat().st_mtime < _SETTLED_SECONDS:
            continue
        yield name.as_posix(), path
