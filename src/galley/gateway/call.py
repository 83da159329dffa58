"""One request of one caller to one model: submitted, counted and recorded here for all protocols."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from galley.errors import RateLimited
from galley.gateway.caller import Caller
from galley.gateway.receipt import Receipt
from galley.gateway.served import ServedModel
from galley.observe.tenants import TokenKind
from galley.service.streams import LONGEST_WAIT, Outputs
from galley.service.text_pool import TextWork
from galley.types import EngineRequest, Output, Timing
from galley.types.model_info import ModelInfo


class Call:
    """The way of a request into the engine and its Outputs back.

    The Generation, transcript or connection that it is made for closes it: what still runs is cancelled, in
    the engine too. From its making to its end it counts against the tenant's limits.

    Attributes:
        served: the model.
        backend: the model as it was loaded when the call began; a reload does not change it.
        endpoint: the route that it came by, for metrics.
        caller: whose log record the call writes.
        generated: tokens that the engine has brought so far.
        receipt: what its sequences that have ended took.
    """

    def __init__(self, served: ServedModel, endpoint: str, caller: Caller) -> None:
        """One more request of the caller's.

        Raises:
            EngineNotReady, EngineFailed: the model cannot answer.
            MemoryPressure: nothing new is taken.
            RateLimited: the tenant has as many requests as it may.
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
        # Of each token something is counted: no labels are looked up then.
        self._generated = (served.metrics.generated, self._tenants.counter(name, "generated"))
        with caller.limited(self._tenants):
            self._began = caller.account.enter()
        self._tenants.begun(caller.tenant.name)
        self.backend.calls.add(self)

    @property
    def info(self) -> ModelInfo:
        """What the model says of itself."""
        return self.backend.engine.info

    @property
    def text(self) -> TextWork:
        """Text work for the caller."""
        return self.backend.text.of(self.caller.share)

    @property
    def model(self) -> str:
        """The name of what answers: the model's, or the adapter's behind it."""
        return self.served.name_with(self.caller.adapter)

    def check_early(self, priority: int) -> None:
        """To be called before text work: raise QueueFull if no answer can come before the deadline.

        Args:
            priority: as the request has it.

        Raises:
            QueueFull, DeadlineExceeded: see :meth:`galley.gateway.submitter.Submitter.submit_all`.
        """
        caller = self.caller
        self.backend.engine.check_early(caller.deadline, caller.share, caller.priority(priority))

    @property
    def room(self) -> int:
        """How many sequences more the caller's tenant may have now."""
        return self.backend.engine.room(self.caller.share)

    def submit_all(
        self, requests: Sequence[EngineRequest], *, reserve: int = 0
    ) -> "list[CallStream]":
        """Start all of them or none; see :meth:`galley.gateway.submitter.Submitter.submit_all`.

        Args:
            reserve: tokens that the requests may need, as far as that is known; what they do need counts in
                the end.

        Raises:
            RateLimited: that is more than the tenant has left of its tokens per minute.
            RequestError: it is more than the tenant's tokens per minute.
        """
        with self.caller.limited(self._tenants):
            self.caller.account.reserve(reserve)
        self._reserved += reserve
        return self._counted(
            self.backend.engine.submit_all(self.caller.marked(requests), self.caller.deadline)
        )

    async def submit_patiently(self, requests: Sequence[EngineRequest]) -> "list[CallStream]":
        """Start all of them, for a call that has begun: waits while the queue is full or no token left."""
        while True:
            try:
                self.caller.account.reserve(0)
                break
            except RateLimited as limited:
                await asyncio.sleep(min(LONGEST_WAIT, limited.retry_after))
        engine, deadline = self.backend.engine, self.caller.deadline
        return self._counted(await engine.submit_patiently(self.caller.marked(requests), deadline))

    def close(self) -> None:
        """Cancel what still runs, and settle the tenant's account. Idempotent."""
        for stream in list(self._open):
            stream.cancel()
        if self._closed:
            return
        self._closed = True
        self.backend.calls.discard(self)
        account = self.caller.account
        account.spend(min(0, self._spent - self._reserved))
        account.leave(self._began)
        self._tenants.ended(self.caller.tenant.name, self.receipt.cost)

    # What is counted of texts, a sequence for each choice, and of audio.

    def prompts_taken(self, tokens: int) -> None:
        """The request's prompts have so many tokens together."""
        self.served.metrics.prompts_taken(tokens)
        self._count("prompt", tokens)
        self._spend(tokens)

    def sequence_begun(self, stream: "CallStream") -> None:
        """A sequence has its first token."""
        assert stream.first_token is not None
        waited = stream.first_token - self.caller.arrived
        self.served.metrics.first_token(self.endpoint, waited)
        self.caller.record.setdefault("ttft_ms", round(1000 * waited, 3))

    def sequence_ended(self, stream: "CallStream", reason: str) -> None:
        """A sequence's text is complete: ``reason`` is its finish reason."""
        per_token = None
        # By the engine's clock: here, tokens of several steps may come at once.
        if stream.timing is not None and stream.tokens > 1:
            per_token = (stream.timing.total - stream.timing.first_token) / (stream.tokens - 1)
        metrics = self.served.metrics
        metrics.sequence_finished(self.endpoint, reason)
        duration = time.monotonic() - self.caller.arrived
        metrics.sequence_timed(self.endpoint, duration=duration, per_token=per_token)

    def sequence_lost(self, reason: str) -> None:
        """A sequence has no end of its own: ``reason`` is "cancelled" or "error"."""
        self.served.metrics.sequence_finished(self.endpoint, reason)

    def texts_ended(
        self, *, prompt: int, cached: int, generated: int, reason: str, whole: bool
    ) -> None:
        """All sequences of a request for text have ended, by themselves if it is ``whole``.

        Counts are of tokens.
        """
        self.served.metrics.prefixes_reused(cached)
        self._count("cached", cached)
        self._record(prompt=prompt, cached=cached, generated=generated, finish=reason)
        self._present(whole=whole)

    def audio_ended(self, seconds: float, reason: str, **facts: Any) -> None:
        """A recording or a live stream has ended: "stop", "cancelled" or "error"."""
        self.served.metrics.audio_heard(self.endpoint, seconds, reason)
        audio = round(seconds, 1)
        self._record(audio_seconds=audio, **facts, generated=self.generated, finish=reason)
        self._present(whole=reason == "stop")

    def recording_done(self, seconds: float) -> None:
        """The transcript of a recording of so many seconds is complete."""
        work = time.monotonic() - self.caller.arrived
        if seconds:
            self.served.metrics.recording_done(self.endpoint, audio=seconds, work=work)

    def _present(self, *, whole: bool) -> None:
        """Put the receipt on record."""
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

    def _delivered(self, tokens: int) -> None:
        self.generated += tokens
        for counter in self._generated:
            counter.inc(tokens)
        self._spend(tokens)

    def _count(self, kind: TokenKind, tokens: int) -> None:
        self._tenants.counter(self.caller.tenant.name, kind).inc(tokens)

    def _spend(self, tokens: int) -> None:
        beyond = self._spent + tokens - max(self._spent, self._reserved)
        self._spent += tokens
        self.caller.account.spend(max(0, beyond))
        self.caller.account.recent_tokens.add(tokens)


class CallStream:
    """One engine request's Outputs, counted as they come; ends after the one with a ``finish_reason``.

    Attributes:
        tokens: so far.
        first_token: when it came, on the monotonic clock; None before.
        timing: the last one known.
    """

    def __init__(self, call: Call, stream: Outputs) -> None:
        """Made by :meth:`Call.submit_all`."""
        self.tokens = 0
        self.first_token: float | None = None
        self.timing: Timing | None = None
        self._call = call
        self._stream = stream
        self._submitted = self._latest = time.monotonic()
        self._billed = False
        self._inter_token = call.served.metrics.inter_token

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        output = await self._stream.__anext__()
        count = len(output.tokens)
        if count:
            now = time.monotonic()
            if self.first_token is None:
                self.first_token = now
            else:
                self._inter_token.observe(now - self._latest)
            self._latest = now
            self.tokens += count
            self._call._delivered(count)
        if output.timing is not None:
            self.timing = output.timing
        if output.finish_reason is not None:
            self._ended()
        return output

    def cancel(self) -> None:
        """The engine forgets the request within one step. Harmless when it has finished."""
        self._ended()
        self._stream.cancel()

    def _ended(self) -> None:
        """Put the last known timing on the receipt, once."""
        self._call._open.discard(self)
        if self.timing is not None and not self._billed:
            self._billed = True
            self._call.receipt.add(self._submitted, self.timing)


@contextmanager
def opened(call: Call) -> Iterator[Call]:
    """Closes the call if the way to what it is made for fails."""
    try:
        yield call
    except BaseException:
        call.close()
        raise
