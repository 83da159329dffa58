"""The response cache of a server, and its part for one loaded model."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from galley.cache.entry import Entry, body_of, kind_of, outputs_of, tokens_in
from galley.cache.flight import Engine, Flight, Follower, Replay
from galley.cache.guard import Guard
from galley.cache.keys import is_cacheable, is_greedy, request_key
from galley.cache.redis_store import SCHEMES, RedisStore
from galley.cache.sqlite_store import SqliteStore
from galley.cache.store import Bounds, Size, Store, StoreError
from galley.cache.wish import Mode, Outcome, Wish
from galley.errors import NotStored, SettingsError
from galley.machine import cache_folder
from galley.service.streams import Outputs
from galley.service.unread import UnreadBudget, as_one
from galley.settings.config import Settings
from galley.types import EngineRequest, Generate, Output

log = logging.getLogger("galley.cache")

FILE_NAME: Final = "responses.sqlite"
_MEASURE_SECONDS: Final = 5.0
"""Interval at which the size of the store is read."""
_GET_SECONDS: Final = 0.1
_PUT_SECONDS: Final = 1.0
"""Times after which the store counts as unusable, and requests go on without it."""


class Counts(Protocol):
    """Counts what the cache does for one model."""

    def looked_up(self, result: str) -> None:
        """Count an engine request or recording by "hit", "shared", "miss" or "bypass"."""

    def saved(self, *, prompt: int, generated: int, seconds: float) -> None:
        """Count tokens that were not computed and the engine time that they would have taken."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is looked up: requests of one caller, and how they may be answered.

    Attributes:
        requests: with their tenant's fields.
        deadline: on the monotonic clock.
        wish: what the request's headers say.
        seeded: whether the request itself says which random numbers are drawn.
        model: the model's name, with the adapter's.
        outcome: what happens is recorded here.
        patient: whether to wait for room in the engine's queue.
    """

    requests: Sequence[EngineRequest]
    deadline: float
    wish: Wish
    seeded: bool
    model: str
    outcome: Outcome
    patient: bool = False


class ResponseCache:
    """The answers that one server keeps. For use in one event loop."""

    def __init__(self, store: Store, bounds: Bounds, pace: float | None = None) -> None:
        """Keep answers in ``store``.

        Args:
            store: closed with the cache.
            bounds: those of the store.
            pace: tokens per second at which stored answers are streamed; None: at once.
        """
        self.store = store
        self.seconds = bounds.seconds
        self.pace = pace
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
        """Return the entries of the keys; none while the store cannot be used."""
        found = await self.reads.run(lambda: self.store.get(keys))
        return [None] * len(keys) if found is None else found

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
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()


class ModelResponses:
    """The cache's part for one loaded model."""

    def __init__(
        self,
        cache: ResponseCache,
        engine: Engine,
        identity: bytes,
        *,
        mode: Mode,
        folder: str,
        counts: Counts,
    ) -> None:
        """Answer a model's requests.

        Args:
            cache: the server's.
            engine: computes what is not stored.
            identity: digest of the model, see :func:`galley.cache.keys.model_identity`.
            mode: whether requests that do not say use the cache.
            folder: where the model was loaded from, for those who list entries.
            counts: the model's metrics.
        """
        self.mode = mode
        self.identity = identity
        self.cache = cache
        self.counts = counts
        self.folder = folder
        self._engine = engine
        self._flights: dict[bytes, Flight] = {}
        self._budget = UnreadBudget()

    async def submit(self, ask: Ask, mode: Mode) -> list[Outputs]:
        """Answer requests from the store, by joining equal ones that run, or by the engine; all or none.

        Args:
            ask: the requests.
            mode: the mode for this caller, its wish included.

        Raises:
            NotStored: only stored answers are wanted, and there is none.
            GalleyError: the errors of :meth:`galley.gateway.submitter.Submitter.submit_all`.
        """
        keys = [self._key(request, ask, mode) for request in ask.requests]
        looked_up = [key for key in keys if key is not None]
        ask.outcome.keys += [key.hex() for key in looked_up]
        reads = looked_up if ask.wish.reads else []
        stored = dict(zip(reads, await self.cache.get(reads), strict=True)) if reads else {}
        # Nothing is awaited between this and the engine, unless it is patient: of requests that are
        # equal, the second finds the first one's flight.
        streams: list[Outputs | None] = [
            self._answered(request, key, stored.get(key) if key else None, ask)
            for request, key in zip(ask.requests, keys, strict=True)
        ]
        missing = [index for index, stream in enumerate(streams) if stream is None]
        if missing and ask.wish.only_stored:
            _cancel(streams)
            raise NotStored("No stored answer fits, and Cache-Control says only-if-cached")
        try:
            await self._compute(missing, keys, streams, ask)
        except BaseException:
            _cancel(streams)
            raise
        return [stream for stream in streams if stream is not None]

    def _key(self, request: EngineRequest, ask: Ask, mode: Mode) -> bytes | None:
        """Return the request's key; None if it is not to be cached."""
        if mode == "off" or not is_cacheable(request):
            return None
        asks = ask.wish.mode == mode
        payload = request.payload
        drawn = isinstance(payload, Generate) and not ask.seeded and not is_greedy(payload.sampling)
        if drawn and not asks:
            return None
        return request_key(self.identity, request, shared_draws=drawn)

    def _answered(
        self, request: EngineRequest, key: bytes | None, entry: Entry | None, ask: Ask
    ) -> Outputs | None:
        """Return the stream of a stored or running answer, or None."""
        if key is None or not ask.wish.reads:
            return None
        flight = self._flights.get(key)
        if flight is not None and flight.joinable:
            self._count_hit(request, ask, tokens_in(flight.outputs), 0.0, 0.0, shared=True)
            return flight.join(request.id, ask.deadline)
        if flight is not None and flight.complete and flight.recording:
            return self._replay(request, flight.outputs, ask, flight.engine_seconds, 0.0)
        if entry is None:
            return None
        age = max(0.0, time.time() - entry.created)
        if age > ask.wish.max_age:
            return None
        outputs = outputs_of(entry)
        return self._replay(request, outputs, ask, entry.engine_seconds, age) if outputs else None

    def _replay(
        self,
        request: EngineRequest,
        outputs: Sequence[Output],
        ask: Ask,
        seconds: float,
        age: float,
    ) -> Replay:
        self._count_hit(request, ask, tokens_in(outputs), seconds, age)
        return Replay(outputs, request, self._engine, ask.deadline, self.cache.pace)

    def _count_hit(
        self,
        request: EngineRequest,
        ask: Ask,
        tokens: Sequence[int],
        seconds: float,
        age: float,
        *,
        shared: bool = False,
    ) -> None:
        ask.outcome.hits += 1
        ask.outcome.age = max(ask.outcome.age, age)
        self.counts.looked_up("shared" if shared else "hit")
        self.counts.saved(prompt=request.payload.reads, generated=len(tokens), seconds=seconds)

    async def _compute(
        self,
        missing: Sequence[int],
        keys: Sequence[bytes | None],
        streams: list[Outputs | None],
        ask: Ask,
    ) -> None:
        """Have the engine answer the missing requests, equal ones among them once."""
        first: dict[bytes, int] = {}
        for index in missing:
            key = keys[index]
            if key is not None:
                first.setdefault(key, index)
        own = [i for i in missing if (key := keys[i]) is None or first[key] == i]
        if not own:
            return
        requests = [ask.requests[index] for index in own]
        if ask.patient:
            sources = await self._engine.submit_patiently(requests, ask.deadline)
        else:
            sources = self._engine.submit_all(requests, ask.deadline)
        for index, request, source in zip(own, requests, sources, strict=True):
            key = keys[index]
            if key is None:
                streams[index] = source
                ask.outcome.bypassed += 1
                self.counts.looked_up("bypass")
            else:
                streams[index] = self._launch(key, request, source, ask)
        for index in missing:
            key = keys[index]
            if streams[index] is None and key is not None:
                flight = self._flights[key]
                self._count_hit(ask.requests[index], ask, (), 0.0, 0.0, shared=True)
                streams[index] = flight.join(ask.requests[index].id, ask.deadline)

    def _launch(self, key: bytes, request: EngineRequest, source: Outputs, ask: Ask) -> Follower:
        result = "miss" if ask.wish.reads else "bypass"
        ask.outcome.misses += ask.wish.reads
        ask.outcome.bypassed += not ask.wish.reads
        self.counts.looked_up(result)

        def ended(flight: Flight) -> None:
            if flight.complete and flight.recording and ask.wish.writes:
                entry = self._entry(flight, request, ask)
                self.cache.put(entry, then=lambda: self._forget(flight))
            else:
                self._forget(flight)

        flight = Flight(key, request, self._engine, source, self._budget, on_end=ended)
        self._flights[key] = flight
        follower = flight.join(request.id, ask.deadline, first=True)
        flight.start()
        return follower

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _entry(self, flight: Flight, request: EngineRequest, ask: Ask) -> Entry:
        now = time.time()
        return Entry(
            key=flight.key,
            kind=kind_of(request),
            model=ask.model,
            folder=self.folder,
            tenant=request.tenant,
            tag=ask.wish.tag,
            created=now,
            expires=now + min(self.cache.seconds, ask.wish.ttl or self.cache.seconds),
            prompt_tokens=request.payload.reads,
            output_tokens=len(tokens_in(flight.outputs)),
            engine_seconds=flight.engine_seconds,
            body=body_of([_alone(flight.outputs)]),
        )


def _alone(outputs: Sequence[Output]) -> Output:
    """Return outputs as one, without what belongs to the request that they answered."""
    return msgspec.structs.replace(as_one(outputs), request_id="", cached_tokens=0, timing=None)


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds that the settings give."""
    return Bounds(
        bytes=settings.response_cache_bytes,
        entries=settings.response_cache_entries,
        seconds=settings.response_cache_seconds,
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


def _cancel(streams: Sequence[Outputs | None]) -> None:
    for stream in streams:
        if stream is not None:
            stream.cancel()
