"""The packed weights of a checkpoint between two starts. What goes wrong costs time, never the service."""

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from galley import _native
from galley.errors import CheckpointError
from galley.formats.checkpoint import Checkpoint
from galley.ops import background
from galley.ops.packed_files import (
    FOLDER_VARIABLE,
    Bytes,
    Entry,
    Header,
    Names,
    UnusablePackedFile,
    cached_files,
    file_path,
    map_file,
    packed_folder,
    remove_partial_files,
    write_file,
)

log: Final = logging.getLogger("galley.weights")


class WeightCache:
    """The file of one checkpoint and weight kind; see ``ops/packed_files.py`` for where and how.

    A checkpoint is known by its :meth:`~galley.formats.checkpoint.Checkpoint.fingerprint`, so weights that
    were overwritten are packed anew.
    """

    def __init__(self, checkpoint: Checkpoint, kind: str) -> None:
        self._checkpoint = checkpoint
        self._header = Header(
            layout_version=_native.LAYOUT_VERSION,
            folder=str(checkpoint.folder.resolve()),
            fingerprint=checkpoint.fingerprint(),
            kind=kind,
            entries=(),
        )
        self._path: Path | None = None
        self._found: Mapping[Names, Bytes] = {}
        try:
            self._path = file_path(packed_folder(), self._header)
            self._found = _open(self._path)
        except OSError as error:
            self._give_up(error)

    def get(self, names: Names) -> Bytes | None:
        """The matrix' bytes, mapped, if the file has them."""
        return self._found.get(names)

    def keep(self, matrices: Mapping[Names, Bytes]) -> None:
        """Write the file with these matrices in it, in the background.

        What was kept of the folder's earlier weights goes. If it cannot be written, one warning says why
        and how to help it.
        """
        if self._path is not None:
            background.start(functools.partial(self._write, self._path, matrices))

    def _write(self, path: Path, matrices: Mapping[Names, Bytes]) -> None:
        if not self._same_checkpoint():
            return
        entries, offset = [], 0
        for names, matrix in matrices.items():
            entries.append(Entry(names, offset, matrix.nbytes))
            offset += matrix.nbytes
        header = msgspec.structs.replace(self._header, entries=tuple(entries))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_superseded(path.parent)
            write_file(path, header, list(matrices.values()))
        except OSError as error:
            self._give_up(error)

    def _same_checkpoint(self) -> bool:
        """Read while it was being replaced, the weights may be of neither state."""
        try:
            return self._checkpoint.fingerprint() == self._header.fingerprint
        except CheckpointError:
            return False

    def _remove_superseded(self, folder: Path) -> None:
        remove_partial_files(folder)
        mine = self._header
        for file in cached_files(folder):
            if (
                file.header is not None
                and (file.header.folder, file.header.kind) == (mine.folder, mine.kind)
                and file.header.fingerprint != mine.fingerprint
            ):
                file.path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        log.warning(
            "packed weights cannot be kept in %s (%s), so every start packs them again; "
            "set %s to a folder with room, or turn weight_cache off",
            self._path or "a cache folder",
            error.strerror or error,
            FOLDER_VARIABLE,
        )
        self._path = None


def _open(path: Path) -> Mapping[Names, Bytes]:
    try:
        header, data = map_file(path)
    except FileNotFoundError:
        return {}
    except UnusablePackedFile as error:
        log.info("%s %s; packing the weights again", path, error)
        path.unlink(missing_ok=True)
        return {}
    return {e.names: data[e.offset : e.offset + e.size] for e in header.entries}
