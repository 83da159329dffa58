"""The response cache's part for one loaded model: what answers each of its requests."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from galley.cache.directives import Directives, Outcome
from galley.cache.entry import Entry, body_of, kind_of, outputs_of, tokens_in
from galley.cache.flight import Engine, Flight, Follower, Replay
from galley.cache.keys import is_cacheable, is_greedy, question_scope, request_key
from galley.cache.question import Placed, Question
from galley.cache.response_cache import ResponseCache
from galley.errors import NotStored
from galley.service.streams import Outputs
from galley.service.unread import UnreadBudget, as_one
from galley.settings.cache import CacheMode
from galley.types import EngineRequest, Generate, Output

if TYPE_CHECKING:
    from galley.cache.hit_checks import HitChecks
    from galley.cache.semantic import Near


class Counts(Protocol):
    """Counts what the cache does for one model; see also :class:`galley.cache.hit_checks.CheckCounts`."""

    def looked_up(self, result: str) -> None:
        """Count an engine request or recording by "hit", "semantic", "shared", "miss" or "bypass"."""

    def saved(self, *, prompt: int, generated: int, seconds: float) -> None:
        """Count tokens that were not computed and the engine time that they would have taken."""

    def checked(self, *, same: bool) -> None:
        """Count a semantic hit that was generated as well."""

    def semantic_off(self, off: bool) -> None:
        """Note whether semantic hits are turned off."""


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One look-up: requests of one caller, and how they may be answered.

    Attributes:
        requests: with their tenant's fields.
        deadline: on the monotonic clock.
        directives: what the request's headers say.
        seeded: whether the request itself says which random numbers are drawn.
        model: the model's name, with the adapter's.
        outcome: what happens is recorded here.
        waits: whether to wait for room in the engine's queue.
        paced: whether stored answers are streamed at the server's pace, if it has one.
        question: what may be compared by meaning; None: nothing.
    """

    requests: Sequence[EngineRequest]
    deadline: float
    directives: Directives
    seeded: bool
    model: str
    outcome: Outcome
    waits: bool = False
    paced: bool = True
    question: Question | None = None


class _Search(NamedTuple):
    """The result for a question: its place among others, and another's answer."""

    placed: Placed | None = None
    near: "Near | None" = None


class ModelResponses:
    """The cache's part for one loaded model."""

    def __init__(
        self,
        cache: ResponseCache,
        engine: Engine,
        identity: bytes,
        *,
        mode: CacheMode,
        folder: str,
        counts: Counts,
        checks: "HitChecks | None" = None,
    ) -> None:
        """Answer a model's requests.

        Args:
            cache: the server's.
            engine: computes what is not stored.
            identity: digest of the model, see :func:`galley.cache.keys.model_identity`.
            mode: whether requests that do not say use the cache.
            folder: where the model was loaded from, for those who list entries.
            counts: the model's metrics.
            checks: samples hits of other questions' answers; without it there are none.
        """
        self.mode = mode
        self.identity = identity
        self.cache = cache
        self.counts = counts
        self.folder = folder
        self._engine = engine
        self._checks = checks
        self._flights: dict[bytes, Flight] = {}
        self._budget = UnreadBudget()

    async def submit(self, lookup: Lookup, mode: CacheMode) -> list[Outputs]:
        """Answer requests from the store, by joining equal ones that run, or by the engine; all or none.

        Args:
            lookup: the requests.
            mode: the mode for this caller, its wish included.

        Raises:
            NotStored: only stored answers are wanted, and there is none.
            GalleyError: the errors of :meth:`galley.gateway.submitter.Submitter.submit_all`.
        """
        keys = [self._key(request, lookup, mode) for request in lookup.requests]
        looked_up = [key for key in keys if key is not None]
        lookup.outcome.keys += [key.hex() for key in looked_up]
        reads = looked_up if lookup.directives.reads else []
        stored = dict(zip(reads, await self.cache.get(reads), strict=True)) if reads else {}
        search = await self._search(lookup, mode, keys, stored)
        # Nothing is awaited between this and the engine, unless it is patient: of requests that are
        # equal, the second finds the first one's flight.
        streams: list[Outputs | None] = [
            self._answered(request, key, stored.get(key) if key else None, lookup)
            for request, key in zip(lookup.requests, keys, strict=True)
        ]
        if search.near is not None and streams == [None]:
            streams = [self._answer_of_another(search, search.near, lookup)]
        missing = [index for index, stream in enumerate(streams) if stream is None]
        if missing and lookup.directives.only_stored:
            _cancel(streams)
            raise NotStored("No stored answer fits, and Cache-Control says only-if-cached")
        try:
            await self._compute(missing, keys, streams, lookup, search.placed)
        except BaseException:
            _cancel(streams)
            raise
        return [stream for stream in streams if stream is not None]

    def _key(self, request: EngineRequest, lookup: Lookup, mode: CacheMode) -> bytes | None:
        """Return the request's key; None if it is not to be cached."""
        if mode == "off" or not is_cacheable(request):
            return None
        chosen = lookup.directives.mode == mode
        drawn = self._is_drawn(request, lookup)
        if drawn and not chosen:
            return None
        return request_key(self.identity, request, shared_draws=drawn)

    def _is_drawn(self, request: EngineRequest, lookup: Lookup) -> bool:
        """Return whether the answer is random, and not by a seed of the client's."""
        payload = request.payload
        return (
            isinstance(payload, Generate) and not lookup.seeded and not is_greedy(payload.sampling)
        )

    async def _search(
        self,
        lookup: Lookup,
        mode: CacheMode,
        keys: Sequence[bytes | None],
        stored: Mapping[bytes, Entry | None],
    ) -> _Search:
        """Look up a question that no equal request contains."""
        semantic = self.cache.semantic
        if mode != "semantic" or semantic is None or self._checks is None or self._checks.off:
            return _Search()
        if lookup.question is None or len(keys) != 1 or (key := keys[0]) is None:
            return _Search()
        if stored.get(key) is not None or key in self._flights:
            return _Search()
        [request] = lookup.requests
        payload = request.payload
        # Log-probabilities of a prompt are those of its own tokens.
        if not isinstance(payload, Generate) or payload.sampling.prompt_logprobs is not None:
            return _Search()
        drawn = self._is_drawn(request, lookup)
        scope = question_scope(self.identity, request, lookup.question.context, shared_draws=drawn)
        placed = await semantic.place(lookup.question, scope)
        if placed is None or not lookup.directives.reads:
            return _Search(placed)
        return _Search(placed, await semantic.find(placed, lookup.directives.max_age))

    def _answer_of_another(self, search: _Search, near: "Near", lookup: Lookup) -> Outputs | None:
        """Return the stream of the answer to another question; None if the entry has none."""
        outputs = outputs_of(near.entry)
        if not outputs:
            return None
        [request] = lookup.requests
        lookup.outcome.similarity = near.similarity
        lookup.outcome.keys = [near.entry.key.hex()]
        if self._checks is not None:
            self._checks.sample(
                request, outputs, lambda fresh: self._correct(search, request, fresh, lookup)
            )
        age = max(0.0, time.time() - near.entry.created)
        seconds = near.entry.engine_seconds
        return self._replay(request, outputs, lookup, seconds, age, kind="semantic")

    def _correct(
        self, search: _Search, request: EngineRequest, fresh: Sequence[Output], lookup: Lookup
    ) -> None:
        """Store the right answer to a question that another's was given to."""
        key = request_key(self.identity, request, shared_draws=self._is_drawn(request, lookup))
        timings = [output.timing.engine_seconds for output in fresh if output.timing]
        if lookup.directives.writes:
            self._put(
                self._entry(key, fresh, max(timings, default=0.0), request, lookup, search.placed)
            )

    def _answered(
        self, request: EngineRequest, key: bytes | None, entry: Entry | None, lookup: Lookup
    ) -> Outputs | None:
        """Return the stream of a stored or running answer, or None."""
        if key is None or not lookup.directives.reads:
            return None
        flight = self._flights.get(key)
        if flight is not None and flight.joinable:
            self._count_hit(request, lookup, tokens_in(flight.outputs), 0.0, 0.0, kind="shared")
            return flight.join(request.id, lookup.deadline)
        if flight is not None and flight.complete and flight.recording:
            return self._replay(request, flight.outputs, lookup, flight.engine_seconds, 0.0)
        if entry is None:
            return None
        age = max(0.0, time.time() - entry.created)
        if age > lookup.directives.max_age:
            return None
        outputs = outputs_of(entry)
        return (
            self._replay(request, outputs, lookup, entry.engine_seconds, age) if outputs else None
        )

    def _replay(
        self,
        request: EngineRequest,
        outputs: Sequence[Output],
        lookup: Lookup,
        seconds: float,
        age: float,
        kind: str = "hit",
    ) -> Replay:
        self._count_hit(request, lookup, tokens_in(outputs), seconds, age, kind=kind)
        pace = self.cache.pace if lookup.paced else None
        return Replay(outputs, request, self._engine, lookup.deadline, pace)

    def _count_hit(
        self,
        request: EngineRequest,
        lookup: Lookup,
        tokens: Sequence[int],
        seconds: float,
        age: float,
        *,
        kind: str = "hit",
    ) -> None:
        lookup.outcome.hits += 1
        lookup.outcome.age = max(lookup.outcome.age, age)
        self.counts.looked_up(kind)
        self.counts.saved(prompt=request.payload.reads, generated=len(tokens), seconds=seconds)

    async def _compute(
        self,
        missing: Sequence[int],
        keys: Sequence[bytes | None],
        streams: list[Outputs | None],
        lookup: Lookup,
        placed: Placed | None,
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
        requests = [lookup.requests[index] for index in own]
        if lookup.waits:
            sources = await self._engine.submit_when_room(requests, lookup.deadline)
        else:
            sources = self._engine.submit_all(requests, lookup.deadline)
        for index, request, source in zip(own, requests, sources, strict=True):
            key = keys[index]
            if key is None:
                streams[index] = source
                lookup.outcome.bypassed += 1
                self.counts.looked_up("bypass")
            else:
                streams[index] = self._launch(key, request, source, lookup, placed)
        for index in missing:
            key = keys[index]
            if streams[index] is None and key is not None:
                flight = self._flights[key]
                self._count_hit(lookup.requests[index], lookup, (), 0.0, 0.0, kind="shared")
                streams[index] = flight.join(lookup.requests[index].id, lookup.deadline)

    def _launch(
        self,
        key: bytes,
        request: EngineRequest,
        source: Outputs,
        lookup: Lookup,
        placed: Placed | None,
    ) -> Follower:
        result = "miss" if lookup.directives.reads else "bypass"
        lookup.outcome.misses += lookup.directives.reads
        lookup.outcome.bypassed += not lookup.directives.reads
        self.counts.looked_up(result)

        def ended(flight: Flight) -> None:
            if flight.complete and flight.recording and lookup.directives.writes:
                outputs, seconds = flight.outputs, flight.engine_seconds
                entry = self._entry(key, outputs, seconds, request, lookup, placed)
                self._put(entry, then=lambda: self._forget(flight))
            else:
                self._forget(flight)

        flight = Flight(key, request, self._engine, source, self._budget, on_end=ended)
        self._flights[key] = flight
        follower = flight.join(request.id, lookup.deadline, first=True)
        flight.start()
        return follower

    async def close(self) -> None:
        """End the checks that run. Idempotent."""
        if self._checks is not None:
            await self._checks.close()

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _put(self, entry: Entry, then: Callable[[], None] = lambda: None) -> None:
        self.cache.put(entry, then)
        if self.cache.semantic is not None:
            self.cache.semantic.add(entry)

    def _entry(
        self,
        key: bytes,
        outputs: Sequence[Output],
        seconds: float,
        request: EngineRequest,
        lookup: Lookup,
        placed: Placed | None,
    ) -> Entry:
        now = time.time()
        return Entry(
            key=key,
            kind=kind_of(request),
            model=lookup.model,
            folder=self.folder,
            tenant=request.tenant,
            tag=lookup.directives.tag,
            created=now,
            expires=now + min(self.cache.seconds, lookup.directives.ttl or self.cache.seconds),
            prompt_tokens=request.payload.reads,
            output_tokens=len(tokens_in(outputs)),
            engine_seconds=seconds,
            body=body_of([_alone(outputs)]),
            question="" if placed is None else placed.text,
            scope=b"" if placed is None else placed.scope,
            vector=b"" if placed is None else placed.vector,
        )


def _alone(outputs: Sequence[Output]) -> Output:
    """Return outputs as one, without what belongs to the request that they answered."""
    return msgspec.structs.replace(as_one(outputs), request_id="", cached_tokens=0, timing=None)


def _cancel(streams: Sequence[Outputs | None]) -> None:
    for stream in streams:
        if stream is not None:
            stream.cancel()
