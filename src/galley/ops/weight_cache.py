"""Keep the packed weights of a checkpoint between starts. Failures cost time, never the service."""

import functools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from galley import _native
from galley.errors import CheckpointError, DamagedWeights, EngineFailed, SettingsError
from galley.formats.reader import CheckpointReader
from galley.machine import FOLDER_VARIABLE
from galley.ops import background
from galley.ops.packed_cache import CachedFile, Use, cached_files, read_use, tidy, write_use
from galley.ops.packed_files import (
    Bytes,
    Entry,
    Header,
    Key,
    UnusablePackedFile,
    file_path,
    map_file,
    packed_folder,
    write_file,
)
from galley.ops.weight_check import WeightCheck

log: Final = logging.getLogger("galley.weights")

_SUPERSEDED_SECONDS: Final = 86_400.0
"""Seconds for which older weights of the same folder are kept, since another machine may still use them."""


class WeightCache:
    """The packed file of one checkpoint and weight type; ``ops/packed_files.py`` defines place and format.

    ``check`` compares the open ``file`` with its checksums; both are None if there is no file.

    A file belongs to weights by their content, so copies of a checkpoint share one. To determine the
    content, the whole checkpoint must be read. That is done if it may save packing, and the result is
    stored for the checkpoint's state, which changes whenever a weight file does.

    Args:
        checkpoint: the checkpoint whose weights are kept.
        kind: weight type that dense matrices are converted to.
        apart: matrices that are read from the file when they are used; they are at its end.
    """

    def __init__(
        self, checkpoint: CheckpointReader, kind: str, apart: frozenset[Key] = frozenset()
    ) -> None:
        self._checkpoint = checkpoint
        self._kind = kind
        self._apart = apart
        self._places: Mapping[Key, int] = {}
        self._state = checkpoint.state()
        self._folder: Path | None = None
        self._found: Mapping[Key, Bytes] = {}
        self.check: WeightCheck | None = None
        self.file: BinaryIO | None = None
        try:
            self._folder = packed_folder()
            self._found = self._look_up(self._folder)
        except OSError as error:
            self._give_up(error)

    def get(self, key: Key) -> Bytes | None:
        """Return the matrix's mapped bytes, or None if the file does not have them."""
        return self._found.get(key)

    def place(self, key: Key) -> int:
        """Return where in :attr:`file` a matrix of ``apart`` begins; call :meth:`fill` first."""
        return self._places[key]

    def fill(self, sizes: Mapping[Key, int], packed: Callable[[Key], Bytes]) -> None:
        """Make sure that there is a file with all of these matrices, before any is requested.

        Args:
            sizes: bytes of each matrix, in the order in which the file has them.
            packed: packs a matrix, which is written before the next one is packed.

        Raises:
            SettingsError: the file cannot be written.
            EngineFailed: the weights changed meanwhile.
            DamagedWeights: the file was removed meanwhile.
        """
        if self._has(sizes):
            return
        try:
            if self._folder is None:
                raise OSError("see the warning above")
            log.info("packing the weights of %s to disk", self._checkpoint.folder)
            path = self._write(self._folder, sizes, packed)
            if path is None:
                raise EngineFailed(
                    f"{self._checkpoint.folder} changed while it was being loaded; start again"
                )
            self._found = self._open(path)
        except OSError as error:
            raise SettingsError(
                f"experts is disk, but packed weights cannot be stored in "
                f"{self._folder or 'a cache folder'} ({error.strerror or error}); set {FOLDER_VARIABLE} to "
                "a folder with enough space, or experts to memory"
            ) from error
        if not self._has(sizes):
            raise DamagedWeights(f"the packed weights in {path} were deleted")
        self._remember(path)

    def _has(self, sizes: Mapping[Key, int]) -> bool:
        return sizes.keys() <= self._found.keys() | self._places.keys()

    def keep(self, matrices: Mapping[Key, Bytes]) -> None:
        """Write a file with these matrices in the background, unless there is one.

        Files of earlier weights of the same folder are removed a day after their last use. If the file
        cannot be written, one warning gives the reason and a remedy.
        """
        if self._folder is not None:
            background.start(functools.partial(self._keep, self._folder, matrices))

    def _look_up(self, folder: Path) -> Mapping[Key, Bytes]:
        use = read_use(folder, self._state, self._kind)
        if use is not None:
            return self._open(folder / use.file)
        outline = self._checkpoint.outline()
        alike = [
            file
            for file in cached_files(folder)
            if file.header is not None
            and (file.header.outline, file.header.kind) == (outline, self._kind)
        ]
        if not alike:
            return {}
        log.info("reading the weights in %s; checking for packed ones", self._checkpoint.folder)
        path = _with_content(alike, self._checkpoint.content_hash(), self._kind)
        if path is None:
            return {}
        found = self._open(path)
        background.start(functools.partial(self._remember, path))
        return found

    def _open(self, path: Path) -> Mapping[Key, Bytes]:
        try:
            packed = map_file(path, self._apart)
        except FileNotFoundError:
            return {}
        except UnusablePackedFile as error:
            log.info("%s %s; packing the weights again", path, error)
            path.unlink(missing_ok=True)
            return {}
        self.check, self.file = WeightCheck(path, packed), packed.file
        entries = packed.header.entries
        self._places = {e.key: packed.start + e.offset for e in entries if e.key in self._apart}
        found = ((e.key, packed.matrix(e)) for e in entries if e.key not in self._apart)
        return {key: matrix for key, matrix in found if matrix is not None}

    def _keep(self, folder: Path, matrices: Mapping[Key, Bytes]) -> None:
        sizes = {key: matrix.nbytes for key, matrix in matrices.items()}
        try:
            path = self._write(folder, sizes, matrices.__getitem__)
        except CheckpointError:
            return
        except OSError as error:
            self._give_up(error)
            return
        if path is not None:
            self._remember(path)

    def _write(
        self, folder: Path, sizes: Mapping[Key, int], packed: Callable[[Key], Bytes]
    ) -> Path | None:
        """Return the file with these matrices, written if there is none; None if the weights changed.

        Raises:
            OSError: the disk is full or permission is missing.
            CheckpointError: a weight file is gone.
        """
        header = Header(
            layout_version=_native.LAYOUT_VERSION,
            folder=str(self._checkpoint.folder.resolve()),
            outline=self._checkpoint.outline(),
            content=self._checkpoint.content_hash(),
            kind=self._kind,
            entries=tuple(_entries(sizes)),
        )
        if self._checkpoint.state() != self._state:
            return None  # the packed weights may mix both states
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        files = cached_files(folder)
        _remove_superseded(files, header)
        path = _with_content(files, header.content, self._kind, set(sizes))
        if path is None:
            path = file_path(folder, header)
            write_file(path, header, map(packed, sizes))
        if self._checkpoint.state() != self._state:
            path.unlink(missing_ok=True)
            return None
        return path

    def _remember(self, path: Path) -> None:
        folder = str(self._checkpoint.folder.resolve())
        try:
            write_use(path.parent, Use(folder, self._state, self._kind, path.name))
        except OSError as error:
            log.info(
                "cannot write to %s (%s), so every start reads the original weights",
                path.parent,
                error,
            )

    def _give_up(self, error: OSError) -> None:
        log.warning(
            "cannot store packed weights in %s (%s), so every start packs them again; "
            "set %s to a folder with enough space, or turn off weight_cache",
            self._folder or "a cache folder",
            error.strerror or error,
            FOLDER_VARIABLE,
        )
        self._folder = None


def _entries(sizes: Mapping[Key, int]) -> list[Entry]:
    """Return entries for consecutive matrices whose checksums are not known yet."""
    entries, offset = [], 0
    for key, size in sizes.items():
        entries.append(Entry(key.names, key.kind, offset, size, 0))
        offset += size
    return entries


def _with_content(
    files: list[CachedFile], content: str, kind: str, wanted: set[Key] | None = None
) -> Path | None:
    """Return the file that has these weights and all of the ``wanted`` matrices; None if none has."""
    for file in files:
        header = file.header
        if (
            header is not None
            and (header.content, header.kind) == (content, kind)
            and (wanted or set()) <= {entry.key for entry in header.entries}
        ):
            return file.path
    return None


def _remove_superseded(files: list[CachedFile], mine: Header) -> None:
    for file in files:
        if (
            file.header is not None
            and (file.header.folder, file.header.kind) == (mine.folder, mine.kind)
            and file.header.content != mine.content
            and time.time() - file.used > _SUPERSEDED_SECONDS
        ):
            file.path.unlink(missing_ok=True)
