"""Checks of the folder of packed weights: whether it can be written, its free space, its speed."""

import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from galley.doctor.findings import Context, Finding
from galley.machine import bytes_text

_VARIABLE: Final = "GALLEY_CACHE_DIR"
_ROOM: Final = 10 << 30
"""Bytes below which a finding is reported: about eight billion parameters in int8."""

_PROBE_BYTES: Final = 64 << 20
_SLOW: Final = 100e6
"""Bytes per second below which the disk delays a first start."""

_MOST_SECONDS: Final = 2.0


def check(context: Context, *, measure: bool = True) -> list[Finding]:
    """Check the cache folder, or the nearest folder above it that exists; ``measure`` writes to it."""
    if not context.settings.weight_cache:
        return [
            Finding(
                check="weight cache",
                level="note",
                found="weight_cache is off",
                cost="every start packs the weights again: seconds per billion parameters",
                remedy="leave it on if there is a disk",
            )
        ]
    from galley.ops.packed_files import packed_folder  # needs the native kernels

    try:
        folder = packed_folder()
    except OSError as error:
        return [_unwritable(f"no folder for packed weights: {error}")]
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    if not os.access(place, os.W_OK | os.X_OK):
        return [_unwritable(f"{place} is not writable")]
    return [_room(place), *([_speed(place)] if measure else [])]


def _unwritable(found: str) -> Finding:
    return Finding(
        check="weight cache",
        level="warning",
        found=found,
        cost="every start packs the weights again: seconds per billion parameters",
        remedy=f"set {_VARIABLE} to a writable folder, on a volume in containers",
    )


def _room(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    little = free < _ROOM
    return Finding(
        check="weight cache",
        level="warning" if little else "ok",
        found=f"{bytes_text(free)} free in {place}",
        cost="packed weights of a larger model do not fit: every start packs them again"
        if little
        else "",
        remedy=f"galley cache prune, or set {_VARIABLE} to a larger disk" if little else "",
        figures={"free_bytes": free, "folder": str(place)},
    )


def _speed(place: Path) -> Finding:
    """Measure the speed of writing: a read of data just written would come from memory."""
    path = place / f".{secrets.token_hex(8)}.partial"
    data = os.urandom(1 << 20)
    written, began = 0, time.monotonic()
    try:
        with path.open("wb") as file:
            while written < _PROBE_BYTES and time.monotonic() - began < _MOST_SECONDS:
                written += file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _unwritable(f"{place}: {error.strerror}")
    finally:
        path.unlink(missing_ok=True)
    rate = written / (time.monotonic() - began)
    slow = rate < _SLOW
    return Finding(
        check="disk",
        level="warning" if slow else "ok",
        found=f"{bytes_text(rate)} per second written and synced in {place}",
        cost="a first start takes minutes to write its packed weights, and cold starts read as slowly"
        if slow
        else "",
        remedy=f"set {_VARIABLE} to a local SSD" if slow else "",
        figures={"bytes_per_s": rate},
    )
