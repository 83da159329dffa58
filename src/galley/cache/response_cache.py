"""The response cache of a server: its store, and what happens while the store cannot be used."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from galley.cache.entry import Entry
from galley.cache.guard import Guard
from galley.cache.redis_store import SCHEMES, RedisStore
from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import Bounds, Size, Store, StoreError
from galley.errors import SettingsError
from galley.machine import cache_folder
from galley.settings.config import Settings

if TYPE_CHECKING:
    from galley.cache.semantic import Semantic  # imports numpy, which only semantic caches need

FILE_NAME: Final = "responses.sqlite"
_MEASURE_SECONDS: Final = 5.0
"""Interval at which the size of the store is read."""
_GET_SECONDS: Final = 0.1
_PUT_SECONDS: Final = 1.0
"""Times after which the store counts as unusable, and requests continue without it."""


class ResponseCache:
    """The answers that one server keeps. For use in one event loop."""

    def __init__(self, store: Store, bounds: Bounds, pace: float | None = None) -> None:
        """Keep answers in ``store``.

        Args:
            store: closed with the cache.
            bounds: those of the store.
            pace: tokens per second at which stored answers are streamed; None: at once.

        ``semantic``, if set, finds answers to other questions that mean the same.
        """
        self.store = store
        self.seconds = bounds.seconds
        self.pace = pace
        self.semantic: Semantic | None = None
        self.reads = Guard("read", _GET_SECONDS)
        self.writes = Guard("written", _PUT_SECONDS)
        self._size = Size(0, 0)
        self._measured = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def open(cls, settings: Settings) -> "ResponseCache":
        """Open the store that the settings name.

        Raises:
            SettingsError: the store cannot be used as it is configured.
        """
        bounds = bounds_of(settings)
        return cls(
            open_store(settings.response_cache_store, bounds), bounds, settings.response_cache_pace
        )

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entries of the keys; no entry while the store cannot be used."""
        return await self.read(keys) or [None] * len(keys)

    async def read(self, keys: Sequence[bytes]) -> list[Entry | None] | None:
        """Return the entries of the keys; None while the store cannot be used."""
        return await self.reads.run(lambda: self.store.get(keys))

    def put(self, entry: Entry, then: Callable[[], None] = lambda: None) -> None:
        """Store an entry in the background, and call ``then`` when it is found, or lost."""

        async def work() -> None:
            try:
                await self.writes.run(lambda: self.store.put(entry))
            finally:
                then()
            await self._measure()

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _measure(self) -> None:
        """Note what the store holds, for the metrics."""
        if time.monotonic() - self._measured >= _MEASURE_SECONDS:
            self._measured = time.monotonic()
            self._size = await self.reads.run(self.store.size) or self._size

    @property
    def stored_entries(self) -> int:
        """Answers in the store, as last measured."""
        return self._size.entries

    @property
    def stored_bytes(self) -> int:
        """Size of the answers in the store, as last measured."""
        return self._size.bytes

    @property
    def failed_reads(self) -> int:
        """Look-ups that the store did not answer."""
        return self.reads.failures

    @property
    def failed_writes(self) -> int:
        """Answers that the store did not take."""
        return self.writes.failures

    async def close(self) -> None:
        """Finish writing, and close the store. Idempotent."""
        if self.semantic is not None:
            await self.semantic.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds that the settings give."""
    return Bounds(
        bytes=settings.response_cache_bytes,
        entries=settings.response_cache_entries,
        seconds=settings.response_cache_seconds,
        questions=settings.semantic_cache_entries,
    )


def default_file() -> Path:
    """Return the file of the store if the settings name none. Raises OSError without a cache folder."""
    return cache_folder() / FILE_NAME


def open_store(place: str, bounds: Bounds) -> Store:
    """Return the store at ``place``: a Redis URL, a file, or "" for the file in the cache folder.

    Raises:
        SettingsError: it cannot be used.
    """
    if place.startswith(SCHEMES):
        return RedisStore(place, bounds, _PUT_SECONDS)
    if "://" in place:
        raise SettingsError(
            f"response_cache_store: {place.partition('://')[0]}:// is not known; give a file, or a URL of "
            f"Redis ({', '.join(SCHEMES)})"
        )
    try:
        return SqliteStore(Path(place) if place else default_file(), bounds)
    except (OSError, StoreError) as error:
        raise SettingsError(f"response_cache_store: {error}") from error
