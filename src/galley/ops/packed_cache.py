"""The cache folder of packed files: which files it has, which checkpoints use them, and their removal."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from galley.files import PARTIAL
from galley.ops.packed_files import (
    SUFFIX,
    Header,
    UnusablePackedFile,
    read_header,
    write_atomically,
)

_USE_SUFFIX: Final = ".use"
MEASURED_SUFFIX: Final = ".measured"
_MEASURED_SECONDS: Final = 90 * 86_400.0
"""Age in seconds after which step measurements (``ops/measured_steps.py``) are repeated."""
_PARTIAL_SECONDS: Final = 3600.0
"""Age in seconds after which a partial file counts as abandoned."""


class Use(msgspec.Struct, frozen=True):
    """A record that packed file ``file`` holds, as ``kind``, the weights in ``folder`` in a ``state``."""

    folder: str
    state: str
    kind: str
    file: str


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache folder.

    Attributes:
        header: None if the file cannot be used.
        flaw: the reason why it cannot be used.
        size: size in bytes.
        used: time when it was last opened or written, in Unix time.
    """

    path: Path
    header: Header | None
    flaw: str
    size: int
    used: float


def read_use(folder: Path, state: str, kind: str) -> Use | None:
    """Return the use recorded for a checkpoint state; None if there is none or its file is gone."""
    use = _read_use(_use_path(folder, state, kind))
    return use if use is not None and (use.state, use.kind) == (state, kind) else None


def write_use(folder: Path, use: Use) -> None:
    """Write a use.

    Raises:
        OSError: the disk is full or permission is missing; no partial file is left.
    """
    write_atomically(_use_path(folder, use.state, use.kind), [memoryview(msgspec.json.encode(use))])


def uses(folder: Path) -> list[Use]:
    """Return all uses whose packed file exists."""
    found = (_read_use(path) for path in folder.glob(f"*{_USE_SUFFIX}"))
    return [use for use in found if use is not None]


def _read_use(path: Path) -> Use | None:
    """Read a use; return None if it cannot be read or its packed file does not exist."""
    with suppress(OSError, msgspec.DecodeError):
        use = msgspec.json.decode(path.read_bytes(), type=Use)
        if (path.parent / use.file).exists():
            return use
    return None


def _use_path(folder: Path, state: str, kind: str) -> Path:
    key = hashlib.sha256(f"{state} {kind}".encode()).hexdigest()[:32]
    return folder / f"{key}{_USE_SUFFIX}"


def cached_files(folder: Path) -> list[CachedFile]:
    """Return all packed files in ``folder``, most recently used first."""
    files = [file for path in folder.glob(f"*{SUFFIX}") for file in _look_at(path)]
    return sorted(files, key=lambda file: -file.used)


def _look_at(path: Path) -> Iterator[CachedFile]:
    header, flaw = None, ""
    with suppress(FileNotFoundError):  # another process removed it
        status = path.stat()
        try:
            with path.open("rb") as file:
                header, _ = read_header(file)
        except UnusablePackedFile as error:
            flaw = str(error)
        except FileNotFoundError:
            raise
        except OSError as error:
            flaw = f"cannot be read: {error.strerror}"
        yield CachedFile(path, header, flaw, status.st_size, status.st_mtime)


def tidy(folder: Path) -> None:
    """Remove files left by killed processes, uses whose file is gone, and old measurements."""
    for suffix, most in ((PARTIAL, _PARTIAL_SECONDS), (MEASURED_SUFFIX, _MEASURED_SECONDS)):
        for path in folder.glob(f"*{suffix}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > most:
                    path.unlink()
    for path in folder.glob(f"*{_USE_SUFFIX}"):
        with suppress(OSError):
            if _read_use(path) is None:
                path.unlink()


def forget_measured(folder: Path) -> None:
    """Remove all step measurements, so that steps are measured again.

    Raises:
        OSError: a file cannot be removed.
    """
    for path in folder.glob(f"*{MEASURED_SUFFIX}"):
        path.unlink(missing_ok=True)
