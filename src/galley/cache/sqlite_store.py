"""Answers in an SQLite file: read in the event loop, written by a thread in batches.

A read is a look-up in the page cache and takes some 20 microseconds, less than passing it to a thread
would. Writes may wait for the disk, so a thread does them. Until they are written, entries are found in
memory. A killed process loses the entries of the last batch at most; WAL mode keeps the file whole.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from galley.cache.entry import Entry, pack, size_of, unpack
from galley.cache.store import OVERHEAD_BYTES, Bounds, Kept, Selection, Size, StoreError

log = logging.getLogger("galley.cache")

_VERSION: Final = 2
_BATCH_SECONDS: Final = 0.1
"""How long the writer gathers entries before it writes them."""
_SWEEP_SECONDS: Final = 30.0
"""Interval at which entries that have ended are removed."""
_MOST_PENDING_BYTES: Final = 32 << 20
"""Entries that may wait for the disk; further ones are not stored."""
_BUSY_SECONDS: Final = 10.0
"""How long the writer waits for another process that writes."""
_ROOM: Final = 0.95
"""Share of the bounds that is left full when entries have to make room, so that this is rare."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    key BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    tenant TEXT NOT NULL,
    tag TEXT NOT NULL,
    expires REAL NOT NULL,
    used REAL NOT NULL,
    hits INTEGER NOT NULL,
    size INTEGER NOT NULL,
    entry BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_used ON entries (used);
CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires);
CREATE INDEX IF NOT EXISTS entries_name ON entries (name);
CREATE TABLE IF NOT EXISTS questions (number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE);
CREATE TRIGGER IF NOT EXISTS questions_removed AFTER DELETE ON entries BEGIN
    DELETE FROM questions WHERE key = old.key;
END;
CREATE TABLE IF NOT EXISTS totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM totals);
CREATE TRIGGER IF NOT EXISTS entries_put AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER IF NOT EXISTS entries_removed AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.size;
END;
CREATE TRIGGER IF NOT EXISTS entries_resized AFTER UPDATE OF size ON entries BEGIN
    UPDATE totals SET bytes = bytes + new.size - old.size;
END;
"""

_PUT: Final = """
INSERT INTO entries (key, name, kind, model, tenant, tag, expires, used, hits, size, entry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)
ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, model = excluded.model, tag = excluded.tag,
    expires = excluded.expires, used = excluded.used, hits = 0, size = excluded.size,
    entry = excluded.entry
"""

_PUT_QUESTION: Final = "INSERT OR REPLACE INTO questions (key) VALUES (?)"

_FOLLOW: Final = """
SELECT questions.number, entries.key, entries.entry
FROM questions JOIN entries ON entries.key = questions.key
WHERE questions.number > ? ORDER BY questions.number LIMIT ?
"""

_BEFORE_LATEST: Final = "SELECT number FROM questions ORDER BY number DESC LIMIT 1 OFFSET ?"

_FIND: Final = """
SELECT key, entry, size, used, hits FROM entries
WHERE name GLOB :name AND (:model IS NULL OR model = :model) AND (:tenant IS NULL OR tenant = :tenant)
    AND (:tag IS NULL OR tag = :tag) AND (:kind IS NULL OR kind = :kind) AND expires > :now
ORDER BY used DESC LIMIT :most
"""

_REMOVE: Final = """
DELETE FROM entries
WHERE name GLOB :name AND (:model IS NULL OR model = :model) AND (:tenant IS NULL OR tenant = :tenant)
    AND (:tag IS NULL OR tag = :tag) AND (:kind IS NULL OR kind = :kind)
"""


class SqliteStore:
    """The entries in one file, which several processes may use at a time."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        """Open the file, or create it. A file that is not a database is renamed.

        Args:
            path: the file; its folder is created if needed.
            bounds: kept by this process's writes.

        Raises:
            StoreError: the file cannot be opened.
        """
        self._path = path
        self._bounds = bounds
        self._pending: dict[bytes, Entry] = {}
        self._pending_bytes = 0
        self._writes: queue.Queue[Entry | None] = queue.Queue()
        self._lock = threading.Lock()
        self._hits: dict[bytes, tuple[int, float]] = {}
        self._damaged: set[bytes] = set()
        self._lost = False
        self._closed = False
        self._reader: sqlite3.Connection | None = _opened(path)
        self._thread = threading.Thread(target=self._write_all, name="galley-cache", daemon=True)
        self._thread.start()

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """See :meth:`galley.cache.store.Store.get`."""
        now = time.time()
        return [self._get(key, now) for key in keys]

    def _get(self, key: bytes, now: float) -> Entry | None:
        entry = self._pending.get(key)
        if entry is None:
            data = self._read(key)
            if data is None:
                return None
            entry = unpack(data, key)
            if entry is None:
                self._damaged.add(key)
                return None
        if entry.expires <= now:
            return None
        self._hits[key] = (self._hits.get(key, (0, now))[0] + 1, now)
        return entry

    def _read(self, key: bytes) -> bytes | None:
        if self._closed:
            raise StoreError("it is closed")
        reader = self._connection()
        try:
            row = reader.execute("SELECT entry FROM entries WHERE key = ?", (key,)).fetchone()
        except sqlite3.OperationalError as error:
            raise StoreError(str(error)) from error
        except sqlite3.DatabaseError as error:
            self._reader = None
            reader.close()
            _set_aside(self._path, error)
            return None
        return None if row is None else row[0]

    def _connection(self) -> sqlite3.Connection:
        """Return the connection for reads; open the file again if it was set aside."""
        if self._reader is None:
            self._reader = _opened(self._path)
        return self._reader

    async def put(self, entry: Entry) -> None:
        """See :meth:`galley.cache.store.Store.put`."""
        size = size_of(entry) + OVERHEAD_BYTES
        if self._closed or size > min(self._bounds.bytes, _MOST_PENDING_BYTES):
            return
        if self._pending_bytes + size > _MOST_PENDING_BYTES:
            raise StoreError("the disk is too slow: too many answers wait to be written")
        with self._lock:
            if entry.key in self._pending:
                self._drop_pending(entry.key)
            self._pending_bytes += size
            self._pending[entry.key] = entry
        self._writes.put(entry)

    async def follow(self, place: str, most: int) -> tuple[list[Entry], str, bool]:
        """See :meth:`galley.cache.store.Store.follow`."""
        with _as_store_errors():
            base = self._connection()
            before = (int(place or 0),)
            if not place:
                latest = base.execute(_BEFORE_LATEST, (self._bounds.questions,))
                before = latest.fetchone() or before
            rows = base.execute(_FOLLOW, (*before, most)).fetchall()
        found = [unpack(data, key) for _, key, data in rows]
        after = str(rows[-1][0]) if rows else place
        return [entry for entry in found if entry is not None], after, len(rows) == most

    async def find(self, selection: Selection, most: int) -> list[Kept]:
        """See :meth:`galley.cache.store.Store.find`."""
        return await asyncio.to_thread(self._find, selection, most)

    def _find(self, selection: Selection, most: int) -> list[Kept]:
        kept = []
        with _as_store_errors(), closing(_opened(self._path)) as base:
            for parameters in _parameters(selection):
                values = {**parameters, "now": time.time(), "most": most}
                for key, data, size, used, hits in base.execute(_FIND, values):
                    entry = unpack(data, key)
                    if entry is not None:
                        kept.append(Kept(entry, size, used, hits))
        return sorted(kept, key=lambda one: -one.used)[:most]

    async def remove(self, selection: Selection) -> int:
        """See :meth:`galley.cache.store.Store.remove`."""
        with self._lock:
            waiting = [key for key, entry in self._pending.items() if selection.has(entry)]
            for key in waiting:
                self._drop_pending(key)
        return len(waiting) + await asyncio.to_thread(self._remove, selection)

    def _remove(self, selection: Selection) -> int:
        with _as_store_errors(), closing(_opened(self._path)) as base, base:
            return sum(base.execute(_REMOVE, one).rowcount for one in _parameters(selection))

    async def size(self) -> Size:
        """See :meth:`galley.cache.store.Store.size`."""
        with _as_store_errors():
            return _size(self._connection())

    async def close(self) -> None:
        """See :meth:`galley.cache.store.Store.close`."""
        if not self._closed:
            self._closed = True
            self._writes.put(None)
            await asyncio.to_thread(self._thread.join)
            if self._reader is not None:
                self._reader.close()

    # The writer's thread.

    def _write_all(self) -> None:
        swept = 0.0
        ended = False
        while not ended:
            batch, ended = self._batch()
            sweep = ended or time.monotonic() - swept >= _SWEEP_SECONDS
            if not (batch or self._hits or self._damaged or sweep):
                continue
            try:
                with closing(_opened(self._path, _BUSY_SECONDS)) as base:
                    self._write(base, batch)
                if self._lost:
                    log.warning("answers are stored in %s again", self._path)
                self._lost = False
            except (sqlite3.Error, StoreError) as error:
                if not self._lost:
                    log.warning("answers cannot be stored in %s: %s", self._path, error)
                self._lost = True
            if sweep:
                swept = time.monotonic()
            with self._lock:
                for entry in batch:
                    if self._pending.get(entry.key) is entry:
                        self._drop_pending(entry.key)

    def _batch(self) -> tuple[list[Entry], bool]:
        """Return the entries to write next, and whether they are the last."""
        batch: list[Entry] = []
        try:
            entry = self._writes.get(timeout=1.0)
            end = time.monotonic() + _BATCH_SECONDS
            while entry is not None:
                batch.append(entry)
                entry = self._writes.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return batch, False
        return batch, True

    def _write(self, base: sqlite3.Connection, batch: Sequence[Entry]) -> None:
        with self._lock:
            # Entries that were removed while they waited stay removed.
            batch = [entry for entry in batch if self._pending.get(entry.key) is entry]
        hits, self._hits = self._hits, {}
        damaged, self._damaged = self._damaged, set()
        with base:
            base.execute("BEGIN IMMEDIATE")
            base.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in damaged])
            base.executemany(_PUT, _rows(batch, time.time()))
            base.executemany(_PUT_QUESTION, [(entry.key,) for entry in batch if entry.question])
            base.executemany(
                "UPDATE entries SET hits = hits + ?, used = ? WHERE key = ?",
                [(count, used, key) for key, (count, used) in hits.items()],
            )
            base.execute("DELETE FROM entries WHERE expires <= ?", (time.time(),))
            self._make_room(base)

    def _make_room(self, base: sqlite3.Connection) -> None:
        """Remove the least recently used entries while there are too many, or too large ones."""
        entries, size = _size(base)
        if entries <= self._bounds.entries and size <= self._bounds.bytes:
            return
        oldest = "SELECT rowid, size FROM entries ORDER BY used LIMIT 1000"
        while rows := base.execute(oldest).fetchall():
            for row, own in rows:
                if entries <= _ROOM * self._bounds.entries and size <= _ROOM * self._bounds.bytes:
                    return
                base.execute("DELETE FROM entries WHERE rowid = ?", (row,))
                entries, size = entries - 1, size - own

    def _drop_pending(self, key: bytes) -> None:
        entry = self._pending.pop(key)
        self._pending_bytes -= size_of(entry) + OVERHEAD_BYTES


def _rows(batch: Iterable[Entry], now: float) -> Iterator[tuple[Any, ...]]:
    for entry in batch:
        data = pack(entry)
        size = len(data) + OVERHEAD_BYTES
        about = (entry.kind, entry.model, entry.tenant, entry.tag)
        yield (entry.key, entry.key.hex(), *about, entry.expires, now, size, data)


def _size(base: sqlite3.Connection) -> Size:
    return Size(*base.execute("SELECT entries, bytes FROM totals").fetchone())


def _parameters(selection: Selection) -> Iterator[dict[str, str | None]]:
    """Yield the parameters of :data:`_FIND` and :data:`_REMOVE` for each beginning of a key."""
    about = {field: getattr(selection, field) for field in ("model", "tenant", "tag", "kind")}
    keys = ("",) if selection.keys is None else selection.keys
    for key in keys:
        yield {**about, "name": f"{key}*"}


def _opened(path: Path, timeout: float = 1.0) -> sqlite3.Connection:
    """Open the file; one that is not a database, or of another version, is renamed first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        try:
            return _connected(path, timeout)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            _set_aside(path, error)
            path.touch(mode=0o600)
            return _connected(path, timeout)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error


def _set_aside(path: Path, error: Exception) -> None:
    """Rename a damaged file, so that a new one takes its place."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
        for more in ("-wal", "-shm"):
            path.with_name(path.name + more).unlink(missing_ok=True)
    except OSError as failure:
        raise StoreError(f"{path} is damaged and cannot be renamed: {failure}") from failure
    log.warning(
        "%s was not a usable database of answers (%s); it is now %s", path, error, aside.name
    )


def _connected(path: Path, timeout: float) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        [version] = base.execute("PRAGMA user_version").fetchone()
        if version not in (0, 1, _VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, and {_VERSION} is known")
        base.execute("PRAGMA journal_mode = WAL")
        # A power failure may lose the last entries, but not the file (sqlite.org/pragma.html).
        base.execute("PRAGMA synchronous = NORMAL")
        if version < _VERSION:  # version 1 had no questions
            base.executescript(_SCHEMA)
            base.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        base.close()
        raise
    return base


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Raise SQLite's errors as StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(str(error)) from error
