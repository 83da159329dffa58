"""Files of KV blocks: their names, and their removal.

    folder/
      <digest of the model>/
        <first byte of the hash>/
          <hash of the block's tokens and all before them>.kv     in the form of block_form.py

A file is written under another name and then renamed, so one with the final name is complete unless the
machine crashed. Whatever is not as expected is a miss.
"""

import errno
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Final

import numpy as np

from galley.engine.block_form import Block, BlockForm
from galley.ops.executor import Bytes

log: Final = logging.getLogger("galley.prefixes")

_SUFFIX: Final = ".kv"
_PARTIAL_SUFFIX: Final = ".partial"
_PARTIAL_SECONDS: Final = 3600.0
"""Age in seconds after which a partial file counts as abandoned."""
_FOLDERS: Final = (re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{2}"))
_STORED: Final = re.compile(r"(?:[0-9a-f]{2})+(?:\.kv|\.[0-9a-f]{8}\.partial)")
"""Names of this module's folders, by depth, and of its files. Whatever else is there is not touched."""
_LONGEST_KEPT: Final = 86_400.0
"""Seconds for which a block is kept at most; a file with a later time has a wrong one."""
_TRIMMED: Final = 7 / 8
"""Share of the allowed bytes that is left after the oldest files are removed."""


class PrefixFiles:
    """The files of one model's blocks, in a folder that engines of any model may share.

    Threads may read while one writes and trims.

    Args:
        folder: the folder; it is made if it is missing, for its owner alone.
        form: the form of the model's blocks.
        most_bytes: bytes that the files in the folder may take, those of other models included.

    Attributes:
        bytes: bytes of all files in the folder, as far as known.
        damaged: number of files found that were not what their names say; they were removed.

    Raises:
        OSError: the folder cannot be made or written, or everyone can write to it: a checksum does not tell
            who wrote a file.
    """

    def __init__(self, folder: Path, form: BlockForm, *, most_bytes: int) -> None:
        self.folder = folder
        self.bytes = self.damaged = 0
        self._form = form
        self._most_bytes = most_bytes
        self._unscanned = 0
        self._own = folder / form.model
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own.mkdir(mode=0o700, exist_ok=True)
        if not os.access(self._own, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {self._own}")
        for place in (folder, self._own):
            _check_private(place)

    def path(self, key: bytes) -> Path:
        """Return the name of the file of the block with this key."""
        name = key.hex()
        return self._own / name[:2] / f"{name}{_SUFFIX}"

    def exists(self, key: bytes) -> bool:
        """Return whether there is a file of that name, whatever is in it."""
        return os.access(self.path(key), os.F_OK)

    def read(self, block: Block, *, removes: bool = True) -> Bytes | None:
        """Return a block's keys and values, or None if there is no intact file of exactly this block.

        Args:
            block: the block.
            removes: whether a file that is another block's, or damaged, is removed.

        Raises:
            OSError: an existing file cannot be read.
        """
        path = self.path(block.key)
        try:
            # Neither a link nor a pipe that somebody put there is followed or waited for.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            found = None
        else:
            with open(file, "rb") as opened:
                found = self._intact(opened, block)
        if found is None and removes:
            self.damaged += 1
            log.warning("%s is not an intact block of this model; it is removed", path)
            path.unlink(missing_ok=True)
        return found

    def _intact(self, file: BufferedReader, block: Block) -> Bytes | None:
        """Return the keys and values in an open file, or None if anything in it is not as expected."""
        found = np.empty(self._form.size(block), dtype=np.uint8)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != len(found):
            return None
        if file.readinto(found.data) != len(found):
            return None
        return self._form.content(block, found)

    def write(self, block: Block, data: Bytes, *, until: float = 0.0) -> int:
        """Write a block, unless its file is there and intact, and return the number of bytes written.

        Args:
            block: what it is.
            data: its keys and values.
            until: time before which it should not be removed, in seconds since 1970.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        path = self.path(block.key)
        if self.exists(block.key) and self.read(block) is not None:
            self.touch(block.key, until=until)
            return 0
        parts = self._form.parts(block, data)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        partial = path.with_suffix(f".{secrets.token_hex(4)}{_PARTIAL_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(partial, flags, 0o600), "wb") as file:
                file.writelines(parts)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        if until:
            self.touch(block.key, until=until)
        written = sum(map(len, parts))
        self.bytes += written
        self._unscanned += written
        return written

    def touch(self, key: bytes, *, until: float = 0.0) -> bool:
        """Record that a block was used now, or is kept ``until`` then; return whether it has a file."""
        path, now = self.path(key), time.time()
        try:
            # Another session may keep the block longer.
            when = max(now, until, min(path.stat().st_mtime, now + _LONGEST_KEPT))
            os.utime(path, (when, when), follow_symlinks=False)
        except OSError:
            return False
        return True

    @property
    def needs_trimming(self) -> bool:
        """Whether the folder may exceed its bytes, or other engines may have filled it meanwhile."""
        return self.bytes > self._most_bytes or self._unscanned > self._most_bytes // 16

    def trim(self, in_use: Container[bytes] = ()) -> None:
        """Measure the folder; remove the files that were used longest ago if it exceeds its bytes.

        Args:
            in_use: keys of blocks that are in memory; their files count as used now.
        """
        now = time.time()
        files = sorted(self._files(now, in_use))
        self.bytes, self._unscanned = sum(size for _, size, _ in files), 0
        if self.bytes <= self._most_bytes:
            return
        for _, size, path in files:
            if self.bytes <= self._most_bytes * _TRIMMED:
                break
            with suppress(OSError):
                os.unlink(path)
                self.bytes -= size

    def _files(self, now: float, in_use: Container[bytes]) -> Iterator[tuple[float, int, str]]:
        """Yield (time of last use, bytes, path) of all files in the folder."""
        for parent, folders, names in os.walk(self.folder):
            depth = len(Path(parent).relative_to(self.folder).parts)
            if depth < len(_FOLDERS):
                folders[:] = filter(_FOLDERS[depth].fullmatch, folders)
                continue
            folders.clear()
            mine = parent.startswith(str(self._own))
            for name in filter(_STORED.fullmatch, names):
                path = os.path.join(parent, name)
                with suppress(OSError):
                    status = os.lstat(path)
                    if name.endswith(_SUFFIX):
                        used = mine and bytes.fromhex(name.removesuffix(_SUFFIX)) in in_use
                        when = max(now, status.st_mtime) if used else status.st_mtime
                        yield when, status.st_size, path
                    elif now - status.st_mtime > _PARTIAL_SECONDS:
                        os.unlink(path)


def _check_private(folder: Path) -> None:
    """Raise PermissionError if people without access to this account can put files into a folder."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise PermissionError(f"everyone can write to {folder} (chmod o-w removes that)")
