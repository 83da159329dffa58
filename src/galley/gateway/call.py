"""One caller's request to one model, submitted, counted and recorded for all protocols."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from galley.cache.directives import MODE_HEADER, Outcome
from galley.cache.question import Question
from galley.cache.responses import Lookup
from galley.errors import RateLimited, RequestError
from galley.gateway.call_stream import CallStream
from galley.gateway.caller import Caller
from galley.gateway.receipt import Receipt
from galley.gateway.served import ServedModel
from galley.observe.tenants import TokenKind
from galley.service.streams import LONGEST_WAIT, Outputs
from galley.service.text_pool import TextWork
from galley.settings.cache import CacheMode
from galley.traffic.recorder import Recorded
from galley.types import EngineRequest, SamplingParams
from galley.types.model_info import ModelInfo


class Call:
    """Passes a request to the engine, and its Outputs back to the caller.

    The Generation, transcript or connection for which the call is created must close it, which also
    cancels in the engine what is still running. A call counts against the tenant's limits from its
    creation to its end.

    Attributes:
        served: the model.
        backend: the model as it was loaded when the call began; a reload does not change it.
        endpoint: the route of the request, for metrics.
        caller: the caller; the call writes its log record.
        generated: tokens that the engine has generated so far.
        receipt: times and cost of the sequences that have ended.
    """

    def __init__(self, served: ServedModel, endpoint: str, caller: Caller) -> None:
        """Open one more request of the caller.

        Raises:
            EngineNotReady, EngineFailed: the model cannot answer.
            MemoryPressure: no new requests are accepted for now.
            RateLimited: the tenant has reached its limit of requests.
        """
        self.served = served
        self.endpoint = endpoint
        self.caller = caller
        self.generated = 0
        self.receipt = Receipt(served.settings.price_per_hour)
        caller.record.setdefault("model", served.name_with(caller.adapter))
        self.backend = served.backend()
        served.memory.check()
        self._open: set[CallStream] = set()
        self._closed = False
        self._reserved = self._spent = 0
        self._tenants = served.metrics.tenants
        name = caller.tenant.name
        # Looked up once, since these are incremented for each token.
        self._generated = (served.metrics.generated, self._tenants.counter(name, "generated"))
        with caller.limited(self._tenants):
            self._began = caller.account.enter()
        self._tenants.begun(caller.tenant.name)
        self.backend.calls.add(self)

    @property
    def info(self) -> ModelInfo:
        """The model's description."""
        return self.backend.engine.info

    @property
    def text(self) -> TextWork:
        """The caller's text work."""
        return self.backend.require_text().pool.of(self.caller.share)

    @property
    def model(self) -> str:
        """The model's name, followed by the adapter's if the request names one."""
        return self.served.name_with(self.caller.adapter)

    def check_early(self, priority: int) -> None:
        """Raise QueueFull if no answer can arrive before the deadline. Call this before any text work.

        A request that the response cache may answer passes: what is not stored is refused with the other
        errors of :meth:`submit`.

        Args:
            priority: the request's priority.

        Raises:
            QueueFull, DeadlineExceeded: see :meth:`galley.gateway.submitter.Submitter.submit_all`.
        """
        caller = self.caller
        if self.backend.may_have_stored(caller):
            return
        wanted = caller.priority(priority)
        self.backend.engine.check_early(caller.scheduled_by, caller.share, wanted)

    @property
    def room(self) -> int:
        """The number of sequences that the caller's tenant may submit now."""
        return self.backend.engine.room(self.caller.share)

    async def submit(
        self,
        requests: Sequence[EngineRequest],
        *,
        reserve: int = 0,
        seeded: bool = False,
        waits: bool = False,
        question: Question | None = None,
    ) -> "list[CallStream]":
        """Start all requests or none, unless the response cache answers them.

        Args:
            requests: the requests to start.
            reserve: see :meth:`submit_all`.
            seeded: whether the caller gave the seed of what is drawn.
            waits: whether to wait while the queue is full or no token is left; for work already begun.
            question: what the response cache may compare by meaning.

        Raises:
            RateLimited, RequestError: as in :meth:`submit_all`.
            NotStored: only stored answers are wanted, and there is none.
        """
        responses, mode = self.backend.responses, self.cache_mode
        if responses is None or self.caller.offered:
            if waits:
                return await self.submit_when_room(requests)
            return self.submit_all(requests, reserve=reserve)
        if waits:
            await self._until_allowed()
        else:
            self._reserve(reserve)
        caller = self.caller
        outcome = caller.cached = caller.cached or Outcome()
        lookup = Lookup(
            requests=caller.marked(requests),
            deadline=caller.deadline,
            directives=caller.directives,
            seeded=seeded,
            model=self.model,
            outcome=outcome,
            waits=waits,
            paced=caller.streams,
            question=question,
        )
        streams = await responses.submit(lookup, mode)
        caller.headers.update(outcome.headers())
        self._record(cache=outcome.word)
        return self._counted(streams)

    @property
    def cache_mode(self) -> CacheMode:
        """Whether the response cache is used, as request, tenant or model say, in this order.

        Raises:
            RequestError: the request wants it, and the server has none.
        """
        responses, directives = self.backend.responses, self.caller.directives
        if responses is None:
            if directives.mode not in (None, "off"):
                raise RequestError(
                    f"{MODE_HEADER} is {directives.mode!r}, but this server stores no answers: it is "
                    "started without --response-cache",
                    param=MODE_HEADER,
                )
            return "off"
        mode = directives.mode or self.caller.tenant.response_cache or responses.mode
        if mode == "semantic" and responses.cache.semantic is None:
            raise RequestError(
                f"{MODE_HEADER} is 'semantic', but this server compares no questions: it is started "
                "without --semantic-cache-model",
                param=MODE_HEADER,
            )
        return mode

    def _reserve(self, tokens: int) -> None:
        with self.caller.limited(self._tenants):
            self.caller.account.reserve(tokens)
        self._reserved += tokens

    async def _until_allowed(self) -> None:
        """Wait until the tenant has tokens left."""
        while True:
            try:
                self.caller.account.reserve(0)
                return
            except RateLimited as limited:
                await asyncio.sleep(min(LONGEST_WAIT, limited.retry_after))

    def submit_all(
        self, requests: Sequence[EngineRequest], *, reserve: int = 0
    ) -> "list[CallStream]":
        """Start all requests or none; see :meth:`galley.gateway.submitter.Submitter.submit_all`.

        Args:
            requests: the requests to start.
            reserve: tokens that the requests may need, as far as this is known; in the end, the tokens used
                are charged.

        Raises:
            RateLimited: ``reserve`` exceeds what the tenant has left of its tokens per minute.
            RequestError: ``reserve`` exceeds the tenant's tokens per minute.
        """
        self._reserve(reserve)
        return self._counted(
            self.backend.engine.submit_all(self.caller.marked(requests), self.caller.deadline)
        )

    async def submit_when_room(self, requests: Sequence[EngineRequest]) -> "list[CallStream]":
        """Start all requests of a call that has begun; wait while the queue is full or no token is left."""
        await self._until_allowed()
        engine, deadline = self.backend.engine, self.caller.deadline
        return self._counted(await engine.submit_when_room(self.caller.marked(requests), deadline))

    def recorded(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, salt: str | None
    ) -> Recorded | None:
        """Begin the request's lines in the record of the traffic; None if there is no record.

        Args:
            prompts: token ids of each prompt.
            params: the request's sampling.
            salt: its cache salt.
        """
        recorder, caller = self.served.recorder, self.caller
        if recorder is None:
            return None
        adapter = "" if caller.adapter is None else caller.adapter.digest
        return recorder.begin(
            prompts,
            params,
            arrived=caller.arrived,
            tenant=caller.tenant.name,
            scope=f"{caller.cache_salt(salt)} {self.served.name} {adapter}",
            model=self.model,
            endpoint=self.endpoint,
        )

    def close(self) -> None:
        """Cancel the sequences that still run, and settle the tenant's account. Idempotent."""
        for stream in list(self._open):
            stream.cancel()
        if self._closed:
            return
        self._closed = True
        self.backend.calls.discard(self)
        account = self.caller.account
        account.spend(min(0, self._spent - self._reserved))
        account.leave(self._began)
        self._tenants.ended(self.caller.tenant.name)
        if self.receipt.cost is not None:
            account.count(self._tenants.cost(self.caller.tenant.name), self.receipt.cost)

    # The counts of texts, with a sequence for each choice, and of audio.

    def prompts_taken(self, tokens: int) -> None:
        """Count the tokens of all prompts of the request."""
        self.served.metrics.prompts_taken(tokens)
        self._count("prompt", tokens)
        self._spend(tokens, time.monotonic())

    def sequence_begun(self, stream: "CallStream") -> None:
        """Record that a sequence has its first token."""
        assert stream.first_token is not None
        waited = stream.first_token - self.caller.arrived
        self.served.metrics.first_token(self.endpoint, waited)
        self.caller.record.setdefault("ttft_ms", round(1000 * waited, 3))

    def sequence_ended(self, stream: "CallStream", reason: str) -> None:
        """Record that a sequence's text is complete; ``reason`` is its finish reason."""
        per_token = None
        # By the engine's clock: here, tokens of several steps may arrive at once.
        if stream.timing is not None and stream.tokens > 1:
            per_token = (stream.timing.total - stream.timing.first_token) / (stream.tokens - 1)
        metrics = self.served.metrics
        metrics.sequence_finished(self.endpoint, reason)
        duration = time.monotonic() - self.caller.arrived
        metrics.sequence_timed(self.endpoint, duration=duration, per_token=per_token)

    def sequence_lost(self, reason: str) -> None:
        """Record that a sequence did not run to completion: ``reason`` is "cancelled" or "error"."""
        self.served.metrics.sequence_finished(self.endpoint, reason)

    def texts_ended(
        self, *, prompt: int, cached: int, generated: int, reason: str, whole: bool
    ) -> None:
        """Record that all sequences of a request for text have ended; ``whole``: all ran to completion.

        Counts are in tokens.
        """
        self.served.metrics.prefixes_reused(cached)
        self._count("cached", cached)
        self._record(prompt=prompt, cached=cached, generated=generated, finish=reason)
        self._present(whole=whole)

    def tensors_ended(self, *, rows: int, whole: bool) -> None:
        """Record the end of a request of tensors; ``rows``: length of its batch axis."""
        self._record(rows=rows, finish="stop" if whole else "unfinished")
        self._present(whole=whole)

    def audio_ended(self, seconds: float, reason: str, **facts: Any) -> None:
        """Record the end of a recording or a live stream: "stop", "cancelled" or "error"."""
        self.served.metrics.audio_transcribed(self.endpoint, seconds, reason)
        audio = round(seconds, 1)
        self._record(audio_seconds=audio, **facts, generated=self.generated, finish=reason)
        self._present(whole=reason == "stop")

    def speech_begun(self) -> None:
        """Record that the first audio of a spoken text is there."""
        waited = time.monotonic() - self.caller.arrived
        self.served.metrics.speech_begun(self.endpoint, waited)
        self.caller.record.setdefault("first_audio_ms", round(1000 * waited, 3))

    def speech_ended(self, seconds: float, reason: str, *, characters: int) -> None:
        """Record the end of a spoken text: "stop", "cancelled" or "error".

        Args:
            seconds: length of its audio.
            reason: how it ended.
            characters: length of the text.
        """
        work = self.receipt.engine_seconds
        self.served.metrics.speech_ended(self.endpoint, audio=seconds, work=work, reason=reason)
        self._record(audio_seconds=round(seconds, 1), characters=characters, finish=reason)
        self._present(whole=reason == "stop")

    def recording_done(self, seconds: float) -> None:
        """Record that the transcript of a recording of ``seconds`` is complete."""
        work = time.monotonic() - self.caller.arrived
        if seconds:
            self.served.metrics.recording_done(self.endpoint, audio=seconds, work=work)

    def _present(self, *, whole: bool) -> None:
        """Write the receipt to the log record, the trace and, for a whole request, the metrics."""
        receipt = self.receipt
        self._record(**receipt.fields())
        self.caller.trace.phases = receipt.phases()
        if whole:
            self.served.metrics.request_timed(
                self.endpoint,
                queue=receipt.queue_seconds,
                prefill=receipt.prefill_seconds,
                decode=receipt.decode_seconds,
            )

    def _record(self, **facts: Any) -> None:
        self.caller.record.update(facts)

    def _counted(self, streams: Sequence[Outputs]) -> "list[CallStream]":
        counted = [CallStream(self, stream) for stream in streams]
        self._open.update(counted)
        return counted

    def _delivered(self, tokens: int, now: float) -> None:
        """Count tokens that arrived ``now``, in seconds on the monotonic clock."""
        self.generated += tokens
        total, tenants = self._generated
        total.inc(tokens)
        self.caller.account.count(tenants, tokens)
        self._spend(tokens, now)

    def _count(self, kind: TokenKind, tokens: int) -> None:
        counter = self._tenants.counter(self.caller.tenant.name, kind)
        self.caller.account.count(counter, tokens)

    def _spend(self, tokens: int, now: float) -> None:
        before = max(self._spent, self._reserved)
        self._spent += tokens
        account = self.caller.account
        if self._spent > before:
            account.spend(self._spent - before)
        account.use(tokens, now)


@contextmanager
def opened(call: Call) -> Iterator[Call]:
    """Close the call if the block fails."""
    try:
        yield call
    except BaseException:
        call.close()
        raise
