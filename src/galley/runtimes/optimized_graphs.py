"""Keeps the graphs that onnxruntime has optimized, next to the packed weights.

A graph is found by a digest of everything that it follows from: the bytes of the model and of its external
data, onnxruntime's build, the session's options and this CPU. Whatever leaves a doubt is optimized again.
Weights in external data are not copied: the graph refers to the model's own files.
"""

import hashlib
import logging
import mmap
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, Final, TypeVar

import msgspec

from galley.files import PARTIAL
from galley.formats.digests import content_hash
from galley.machine import available_memory, bytes_text, cpu_features, cpu_name
from galley.ops.packed_cache import MEASURED_SUFFIX, tidy
from galley.ops.packed_files import packed_folder, write_atomically
from galley.runtimes.tensor_model import TensorModel
from galley.runtimes.trial import same_bits

log = logging.getLogger("galley.runtimes")

T = TypeVar("T", bound=TensorModel)

_MAGIC: Final = b"galleyog"
_VERSION: Final = 1
_SUFFIX: Final = ".graph"
_LENGTH_BYTES: Final = 4
_MOST_HEADER: Final = 1 << 16
_MOST_BYTES: Final = 1 << 30
"""Bytes of a model with its external data, or of a graph, above which the graph is not kept."""
_COPIES: Final = 6
"""How often the model is in memory at most: twice loaded, each from a parsed file, and two files."""
_TOO_LARGE: Final = f"it has more than {bytes_text(_MOST_BYTES)}"
_IN_DOUBT: Final = "it may have external data that are not in its folder"
_SUPERSEDED_SECONDS: Final = 86_400.0
"""Seconds after their last use for which graphs of the same file are kept; see ``ops/weight_cache.py``."""

_LOCATION: Final = b"location"
_EXTERNAL: Final = re.compile(rb"\n\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])", re.DOTALL)
"""An entry of TensorProto.external_data, as protobuf writes it, with the length of the file's name."""


class _Header(msgspec.Struct, frozen=True):
    source: str
    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A file of the folder.

    Attributes:
        source: the model's file.
        size: bytes.
        used: when it was last read or written, in Unix time.
    """

    path: Path
    source: str
    size: int
    used: float


class OptimizedGraph:
    """The place of one model's graph for one set of options. A failure to keep it costs time alone."""

    def __init__(self, file: Path, options: object) -> None:
        """Read the model's bytes.

        Args:
            file: the model.
            options: all that the graph depends on, except the model and the CPU, as JSON values.

        Raises:
            OSError, CheckpointError: the model or its data cannot be read, or no cache folder is known.
            ValueError: a graph would cost time, as an earlier start has found; or the model, or this
                machine, leaves a doubt about what the graph depends on.
        """
        self._source = file.absolute()
        self._folder = packed_folder()
        features = cpu_features()
        if not features:
            raise ValueError("this system does not list the CPU's instructions")
        began = time.perf_counter()
        machine = platform.machine(), cpu_name(), features
        known = [_VERSION, str(self._source), _state([file]), options, machine]
        self._refused = self._folder / f"{_digest(known)}{MEASURED_SUFFIX}"
        if self._refused.exists():
            raise ValueError(
                "an earlier start found that this saves no time, or changes the outputs"
            )
        self._files = [file, *external_files(file)]
        size = sum(one.stat().st_size for one in self._files)
        if size > _MOST_BYTES:
            raise ValueError(_TOO_LARGE)
        if _COPIES * size > available_memory():
            raise ValueError("too little memory is free for a comparison")
        self._state = _state(self._files)
        known = [_VERSION, content_hash(self._files), options, machine]
        self._key = _digest(known)
        self._path = self._folder / f"{self._key}{_SUFFIX}"
        self._seconds = time.perf_counter() - began

    @property
    def data_folder(self) -> Path:
        """The folder that names of external data in the graph are relative to."""
        return self._source.parent

    def read(self) -> bytes | None:
        """Return the graph, or None if there is none that is intact."""
        try:
            with self._path.open("rb") as file:
                header = _read_header(file)
                data = file.read(_MOST_BYTES + 1)
        except (OSError, ValueError):
            return None
        if header.key != self._key or header.digest != hashlib.sha256(data).hexdigest():
            return None
        with suppress(OSError):  # the folder may be read-only
            os.utime(self._path)
        return data

    def make(self, optimize: Callable[[str], T], load: Callable[[bytes], T]) -> T | None:
        """Return a model whose graph is now kept; None if onnxruntime cannot write its graph.

        The graph is kept if loading it saves time and it returns the model's bits for random inputs.
        Otherwise that is recorded, so that later starts do not try again.

        Args:
            optimize: returns the model, and writes its graph to a path.
            load: returns the model of a graph.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            tidy(self._folder)
            with NamedTemporaryFile(dir=self._folder, prefix=".", suffix=PARTIAL) as partial:
                model, optimizing = _timed(lambda: optimize(partial.name))
                size = Path(partial.name).stat().st_size
                graph = Path(partial.name).read_bytes() if size <= _MOST_BYTES else b""
        except Exception as error:  # onnxruntime's errors have no common base
            log.info("the optimized graph of %s is not kept: %s", self._source, error)
            return None
        try:
            self._consider(model, graph, optimizing, load)
        except Exception as error:
            log.info("the optimized graph of %s is not kept: %s", self._source, error)
        return model

    def _consider(
        self, model: T, graph: bytes, optimizing: float, load: Callable[[bytes], T]
    ) -> None:
        """Keep the graph of a model that was optimized in this many seconds, or record why not."""
        reason = _TOO_LARGE
        if graph:
            other, loading = _timed(lambda: load(graph))
            reason = "" if saves(optimizing, loading, self._seconds) else "it saves no time"
            if not reason and not same_bits(model, other):
                reason = "its outputs are not certainly the same"
        if _state(self._files) != self._state:
            reason = "the model has changed meanwhile"
        elif reason:
            write_atomically(self._refused, [memoryview(reason.encode())])
        else:
            self._write(graph)
        if reason:
            log.info("the optimized graph of %s is not kept: %s", self._source, reason)

    def _write(self, graph: bytes) -> None:
        for other in _stored(self._folder):
            if other.source == str(self._source) and time.time() - other.used > _SUPERSEDED_SECONDS:
                other.path.unlink(missing_ok=True)
        digest = hashlib.sha256(graph).hexdigest()
        header = msgspec.json.encode(_Header(str(self._source), self._key, digest))
        start = _MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header
        write_atomically(self._path, [memoryview(start), memoryview(graph)])


def saves(optimizing: float, loading: float, reading: float) -> bool:
    """Return whether a start is faster with a kept graph than without.

    Args:
        optimizing: seconds to load and optimize a model, and to write its graph.
        loading: seconds to load the graph from memory.
        reading: seconds to read and hash the model. The graph takes about as long to write, and to read.
    """
    return optimizing - loading > 3 * reading


def stored() -> list[StoredGraph]:
    """Return all graphs, the last used first.

    Raises:
        OSError: no cache folder is known.
    """
    return sorted(_stored(packed_folder()), key=lambda one: -one.used)


def _stored(folder: Path) -> Iterator[StoredGraph]:
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):  # another process removed it
            status = path.stat()
            try:
                with path.open("rb") as file:
                    source = _read_header(file).source
            except ValueError:
                source = path.name
            yield StoredGraph(path, source, status.st_size, status.st_mtime)


def _read_header(file: BinaryIO) -> _Header:
    """Read the header. Raises ValueError if it is damaged or of another version."""
    start = file.read(len(_MAGIC) + _LENGTH_BYTES)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if not start.startswith(_MAGIC) or length > _MOST_HEADER:
        raise ValueError("wrong magic bytes")
    return msgspec.json.decode(file.read(length), type=_Header)


def external_files(model: Path) -> list[Path]:
    """Return the files that hold a model's external data.

    Raises:
        ValueError: the file is too large, or it is not certain which these files are.
        OSError: it cannot be read.
    """
    return list(_external_files(model, *_state([model])))


@lru_cache(maxsize=16)
def _external_files(model: Path, state: tuple[int, ...]) -> tuple[Path, ...]:
    """Return the files that hold the external data of a model in a state; it is searched once."""
    if model.stat().st_size > _MOST_BYTES:
        raise ValueError(_TOO_LARGE)
    # Mapped, not read: the memory that a model needs is not known to be free yet.
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        names = set(_external_names(data))
    files = tuple(sorted(model.parent / name for name in names))
    if not all(one.is_file() and ".." not in one.parts for one in files):
        raise ValueError(_IN_DOUBT)
    return files


def _external_names(data: mmap.mmap) -> Iterator[str]:
    place = data.find(_LOCATION)
    while place >= 0:
        found = _EXTERNAL.match(data, max(0, place - 2))
        if found is None:
            raise ValueError(_IN_DOUBT)
        low, *high = found[1]
        length = (low & 0x7F) | (high[0] << 7 if high else 0)
        yield data[found.end() : found.end() + length].decode()
        place = data.find(_LOCATION, found.end())


def _state(files: Sequence[Path]) -> list[tuple[int, ...]]:
    """Return what changes when a file is written or replaced; see ``formats/digests.py``."""
    every = [path.stat() for path in files]
    return [(s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in every]


def _digest(known: object) -> str:
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result, and the seconds that it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began
