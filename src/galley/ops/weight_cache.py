"""The packed weights of a checkpoint between two starts. What goes wrong costs time, never the service."""

import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from galley import _native
from galley.errors import CheckpointError
from galley.formats.reader import CheckpointReader
from galley.ops import background
from galley.ops.packed_files import (
    FOLDER_VARIABLE,
    Bytes,
    CachedFile,
    Entry,
    Header,
    Key,
    UnusablePackedFile,
    Use,
    cached_files,
    file_path,
    map_file,
    packed_folder,
    read_use,
    tidy,
    write_file,
    write_use,
)
from galley.ops.weight_check import WeightCheck, checksum

log: Final = logging.getLogger("galley.weights")

_SUPERSEDED_SECONDS: Final = 86_400.0
"""Older weights of the same folder are kept so long: another machine may still start with them."""


class WeightCache:
    """The packed file of one checkpoint and weight kind; see ``ops/packed_files.py`` for where and how.

    ``check`` compares the mapped file with its checksums; None if there is none.

    A file belongs to weights by their content, so copies share one. To know the content a checkpoint must
    be read as a whole: that is done where it may save packing, and remembered for its state, which changes
    whenever a weight file does.
    """

    def __init__(self, checkpoint: CheckpointReader, kind: str) -> None:
        self._checkpoint = checkpoint
        self._kind = kind
        self._state = checkpoint.state()
        self._folder: Path | None = None
        self._found: Mapping[Key, Bytes] = {}
        self.check: WeightCheck | None = None
        try:
            self._folder = packed_folder()
            self._found = self._look_up(self._folder)
        except OSError as error:
            self._give_up(error)

    def get(self, key: Key) -> Bytes | None:
        """The matrix' bytes, mapped, if the file has them."""
        return self._found.get(key)

    def keep(self, matrices: Mapping[Key, Bytes]) -> None:
        """Write a file with these matrices in it, unless there is one; in the background.

        What was kept of the folder's earlier weights goes, a day after its last use. If the file cannot be
        written, one warning says why and how to help it.
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
        log.info("reading the weights in %s, which may be packed already", self._checkpoint.folder)
        path = _with_content(alike, self._checkpoint.content_hash(), self._kind)
        if path is None:
            return {}
        found = self._open(path)
        background.start(functools.partial(self._remember, path))
        return found

    def _open(self, path: Path) -> Mapping[Key, Bytes]:
        try:
            header, data = map_file(path)
        except FileNotFoundError:
            return {}
        except UnusablePackedFile as error:
            log.info("%s %s; packing the weights again", path, error)
            path.unlink(missing_ok=True)
            return {}
        self.check = WeightCheck(path, header.entries, data)
        return {e.key: data[e.offset : e.offset + e.size] for e in header.entries}

    def _keep(self, folder: Path, matrices: Mapping[Key, Bytes]) -> None:
        try:
            header = Header(
                layout_version=_native.LAYOUT_VERSION,
                folder=str(self._checkpoint.folder.resolve()),
                outline=self._checkpoint.outline(),
                content=self._checkpoint.content_hash(),
                kind=self._kind,
                entries=tuple(_entries(matrices)),
            )
            if self._checkpoint.state() != self._state:
                return  # what was packed may be of neither state
        except CheckpointError:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tidy(folder)
            files = cached_files(folder)
            _remove_superseded(files, header)
            path = _with_content(files, header.content, self._kind, set(matrices))
            if path is None:
                path = file_path(folder, header)
                write_file(path, header, list(matrices.values()))
        except OSError as error:
            self._give_up(error)
        else:
            self._remember(path)

    def _remember(self, path: Path) -> None:
        folder = str(self._checkpoint.folder.resolve())
        try:
            write_use(path.parent, Use(folder, self._state, self._kind, path.name))
        except OSError as error:
            log.info(
                "%s cannot be written to (%s): each start reads the weights", path.parent, error
            )

    def _give_up(self, error: OSError) -> None:
        log.warning(
            "packed weights cannot be kept in %s (%s), so every start packs them again; "
            "set %s to a folder with room, or turn weight_cache off",
            self._folder or "a cache folder",
            error.strerror or error,
            FOLDER_VARIABLE,
        )
        self._folder = None


def _entries(matrices: Mapping[Key, Bytes]) -> list[Entry]:
    entries, offset = [], 0
    for key, matrix in matrices.items():
        entries.append(Entry(key.names, key.kind, offset, matrix.nbytes, checksum(matrix)))
        offset += matrix.nbytes
    return entries


def _with_content(
    files: list[CachedFile], content: str, kind: str, wanted: set[Key] | None = None
) -> Path | None:
    """The file with these weights, and all of the ``wanted`` matrices."""
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
