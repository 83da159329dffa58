"""The response cache's part for one loaded model: what answers each of its requests."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from galley.cache.entry import Entry, body_of, kind_of, outputs_of, tokens_in
from galley.cache.flight import Engine, Flight, Follower, Replay
from galley.cache.keys import is_cacheable, is_greedy, question_scope, request_key
from galley.cache.question import Placed, Question
from galley.cache.response_cache import ResponseCache
from galley.cache.wish import Outcome, Wish
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
        question: what may be compared by meaning; None: nothing.
    """

    requests: Sequence[EngineRequest]
    deadline: float
    wish: Wish
    seeded: bool
    model: str
    outcome: Outcome
    patient: bool = False
    question: Question | None = None


class _Search(NamedTuple):
    """What was found of a question: its place among others, and another's answer."""

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

    async def submit(self, ask: Ask, mode: CacheMode) -> list[Outputs]:
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
        search = await self._search(ask, mode, keys, stored)
        # Nothing is awaited between this and the engine, unless it is patient: of requests that are
        # equal, the second finds the first one's flight.
        streams: list[Outputs | None] = [
            self._answered(request, key, stored.get(key) if key else None, ask)
            for request, key in zip(ask.requests, keys, strict=True)
        ]
        if search.near is not None and streams == [None]:
            streams = [self._answer_of_another(search, search.near, ask)]
        missing = [index for index, stream in enumerate(streams) if stream is None]
        if missing and ask.wish.only_stored:
            _cancel(streams)
            raise NotStored("No stored answer fits, and Cache-Control says only-if-cached")
        try:
            await self._compute(missing, keys, streams, ask, search.placed)
        except BaseException:
            _cancel(streams)
            raise
        return [stream for stream in streams if stream is not None]

    def _key(self, request: EngineRequest, ask: Ask, mode: CacheMode) -> bytes | None:
        """Return the request's key; None if it is not to be cached."""
        if mode == "off" or not is_cacheable(request):
            return None
        asks = ask.wish.mode == mode
        drawn = self._is_drawn(request, ask)
        if drawn and not asks:
            return None
        return request_key(self.identity, request, shared_draws=drawn)

    def _is_drawn(self, request: EngineRequest, ask: Ask) -> bool:
        """Return whether the answer is random, and not by a seed of the client's."""
        payload = request.payload
        return isinstance(payload, Generate) and not ask.seeded and not is_greedy(payload.sampling)

    async def _search(
        self,
        ask: Ask,
        mode: CacheMode,
        keys: Sequence[bytes | None],
        stored: Mapping[bytes, Entry | None],
    ) -> _Search:
        """Look a question up that no equal request has asked."""
        semantic = self.cache.semantic
        if mode != "semantic" or semantic is None or self._checks is None or self._checks.off:
            return _Search()
        if ask.question is None or len(keys) != 1 or (key := keys[0]) is None:
            return _Search()
        if stored.get(key) is not None or key in self._flights:
            return _Search()
        [request] = ask.requests
        payload = request.payload
        # Log-probabilities of a prompt are those of its own tokens.
        if not isinstance(payload, Generate) or payload.sampling.prompt_logprobs is not None:
            return _Search()
        drawn = self._is_drawn(request, ask)
        scope = question_scope(self.identity, request, ask.question.context, shared_draws=drawn)
        placed = await semantic.place(ask.question, scope)
        if placed is None or not ask.wish.reads:
            return _Search(placed)
        return _Search(placed, await semantic.find(placed, ask.wish.max_age))

    def _answer_of_another(self, search: _Search, near: "Near", ask: Ask) -> Outputs | None:
        """Return the stream of the answer to another question; None if the entry has none."""
        outputs = outputs_of(near.entry)
        if not outputs:
            return None
        [request] = ask.requests
        ask.outcome.similarity = near.similarity
        ask.outcome.keys = [near.entry.key.hex()]
        if self._checks is not None:
            self._checks.sample(
                request, outputs, lambda fresh: self._correct(search, request, fresh, ask)
            )
        age = max(0.0, time.time() - near.entry.created)
        seconds = near.entry.engine_seconds
        return self._replay(request, outputs, ask, seconds, age, kind="semantic")

    def _correct(
        self, search: _Search, request: EngineRequest, fresh: Sequence[Output], ask: Ask
    ) -> None:
        """Store the right answer to a question that another's was given to."""
        key = request_key(self.identity, request, shared_draws=self._is_drawn(request, ask))
        timings = [output.timing.engine_seconds for output in fresh if output.timing]
        if ask.wish.writes:
            self._put(
                self._entry(key, fresh, max(timings, default=0.0), request, ask, search.placed)
            )

    def _answered(
        self, request: EngineRequest, key: bytes | None, entry: Entry | None, ask: Ask
    ) -> Outputs | None:
        """Return the stream of a stored or running answer, or None."""
        if key is None or not ask.wish.reads:
            return None
        flight = self._flights.get(key)
        if flight is not None and flight.joinable:
            self._count_hit(request, ask, tokens_in(flight.outputs), 0.0, 0.0, kind="shared")
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
        kind: str = "hit",
    ) -> Replay:
        self._count_hit(request, ask, tokens_in(outputs), seconds, age, kind=kind)
        return Replay(outputs, request, self._engine, ask.deadline, self.cache.pace)

    def _count_hit(
        self,
        request: EngineRequest,
        ask: Ask,
        tokens: Sequence[int],
        seconds: float,
        age: float,
        *,
        kind: str = "hit",
    ) -> None:
        ask.outcome.hits += 1
        ask.outcome.age = max(ask.outcome.age, age)
        self.counts.looked_up(kind)
        self.counts.saved(prompt=request.payload.reads, generated=len(tokens), seconds=seconds)

    async def _compute(
        self,
        missing: Sequence[int],
        keys: Sequence[bytes | None],
        streams: list[Outputs | None],
        ask: Ask,
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
                streams[index] = self._launch(key, request, source, ask, placed)
        for index in missing:
            key = keys[index]
            if streams[index] is None and key is not None:
                flight = self._flights[key]
                self._count_hit(ask.requests[index], ask, (), 0.0, 0.0, kind="shared")
                streams[index] = flight.join(ask.requests[index].id, ask.deadline)

    def _launch(
        self,
        key: bytes,
        request: EngineRequest,
        source: Outputs,
        ask: Ask,
        placed: Placed | None,
    ) -> Follower:
        result = "miss" if ask.wish.reads else "bypass"
        ask.outcome.misses += ask.wish.reads
        ask.outcome.bypassed += not ask.wish.reads
        self.counts.looked_up(result)

        def ended(flight: Flight) -> None:
            if flight.complete and flight.recording and ask.wish.writes:
                outputs, seconds = flight.outputs, flight.engine_seconds
                entry = self._entry(key, outputs, seconds, request, ask, placed)
                self._put(entry, then=lambda: self._forget(flight))
            else:
                self._forget(flight)

        flight = Flight(key, request, self._engine, source, self._budget, on_end=ended)
        self._flights[key] = flight
        follower = flight.join(request.id, ask.deadline, first=True)
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
        ask: Ask,
        placed: Placed | None,
    ) -> Entry:
        now = time.time()
        return Entry(
            key=key,
            kind=kind_of(request),
            model=ask.model,
            folder=self.folder,
            tenant=request.tenant,
            tag=ask.wish.tag,
            created=now,
            expires=now + min(self.cache.seconds, ask.wish.ttl or self.cache.seconds),
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
