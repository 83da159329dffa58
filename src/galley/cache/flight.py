"""One generation for equal requests that run at the same time, and the replay of a stored answer.

Each follower of a flight has its own stream, deadline and cancellation. The engine's request ends with its
last follower.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import msgspec

from galley.cache.entry import tokens_in
from galley.errors import DeadlineExceeded, GalleyError
from galley.service.streams import Outputs
from galley.service.unread import Unread, UnreadBudget, as_one, size_of
from galley.types import EngineRequest, Output, Tensors, Timing, Tokens

MOST_RECORDED_BYTES: Final = 8 << 20
"""Estimated size of an answer in memory beyond which it is neither stored nor joined."""


class Engine(Protocol):
    """The part of :class:`galley.gateway.submitter.Submitter` that a cache needs."""

    def submit_all(self, requests: Sequence[EngineRequest], deadline: float) -> Sequence[Outputs]:
        """See :meth:`galley.gateway.submitter.Submitter.submit_all`."""

    async def submit_when_room(
        self, requests: Sequence[EngineRequest], deadline: float
    ) -> Sequence[Outputs]:
        """See :meth:`galley.gateway.submitter.Submitter.submit_when_room`."""


class Flight:
    """A request in the engine, and those that wait for its answer.

    Attributes:
        key: the answer's key.
        outputs: what the engine has put out so far.
        complete: whether ``outputs`` are the whole answer: the engine has ended it, or a reader needs no
            more of it.
        recording: whether ``outputs`` has everything from the beginning.
        engine_seconds: engine time of the answer so far.
    """

    def __init__(
        self,
        key: bytes,
        request: EngineRequest,
        engine: Engine,
        source: Outputs,
        budget: UnreadBudget,
        *,
        on_end: Callable[["Flight"], None],
    ) -> None:
        """Create a flight without followers; :meth:`join` adds the first, :meth:`start` reads the engine.

        Args:
            key: the answer's key.
            request: the request that the engine answers.
            engine: where the request was submitted.
            source: the engine's stream.
            budget: the memory that the followers' unread outputs share.
            on_end: called once, when no more outputs will come.
        """
        self.key = key
        self.outputs: list[Output] = []
        self.complete = False
        self.recording = True
        self.engine_seconds = 0.0
        self._request = request
        self._engine = engine
        self._source = source
        self._budget = budget
        self._on_end = on_end
        self._bytes = 0
        self._billed = 0.0
        self._ended = False
        self._continued = 0
        self._followers: list[Follower] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read the engine's stream."""
        self._task = asyncio.create_task(self._read(), name="galley-flight")

    def join(self, request_id: str, deadline: float, *, first: bool = False) -> "Follower":
        """Return a stream of the answer from its beginning.

        Args:
            request_id: the id of the joining request.
            deadline: on the monotonic clock; the stream then raises DeadlineExceeded.
            first: whether it is the request that the engine answers.
        """
        assert self.joinable
        prompt = None if first else self._request.payload.reads
        follower = Follower(self, request_id, deadline, self._budget, prompt)
        for output in self.outputs:
            follower.take(output, 0.0)
        self._followers.append(follower)
        return follower

    @property
    def joinable(self) -> bool:
        """Whether a further request can have the whole answer from here."""
        return self.recording and not self._ended

    def leave(self, follower: "Follower", *, whole: bool) -> None:
        """Remove a follower; ``whole``: it needs no more, and has the whole answer."""
        if follower not in self._followers:
            return
        if follower is self._followers[0]:
            self._billed = max(self._billed, self.engine_seconds)
        self._followers.remove(follower)
        self.complete |= whole
        if not self._followers and not self._ended:
            self._source.cancel()
            self._end()

    async def _read(self) -> None:
        try:
            while not self._ended:
                try:
                    async for output in self._source:
                        self._deliver(output)
                    break
                except DeadlineExceeded:
                    await self._continue()
        except GalleyError as error:
            for follower in self._followers:
                follower.fail(error)
        if not self._ended:
            self._end()

    async def _continue(self) -> None:
        """Submit the rest of the request again, with the latest deadline of the remaining followers.

        The request had the deadline of its first follower. Raises the errors of the engine.
        """
        # The deadlines' timers may not have run yet.
        for follower in list(self._followers):
            if follower.deadline <= time.monotonic():
                follower.expire()
        if self._ended:
            return
        latest = max((follower.deadline for follower in self._followers), default=math.inf)
        payload = self._request.payload.resumed(
            tokens_in(self.outputs), answered=bool(self.outputs)
        )
        # Outputs of the request that has just ended may still be on their way.
        self._continued += 1
        name = f"{self._request.id}.{self._continued}"
        request = msgspec.structs.replace(self._request, id=name, payload=payload)
        [self._source] = await self._engine.submit_when_room([request], latest)

    def _deliver(self, output: Output) -> None:
        if self._ended:
            return
        if output.timing is not None:
            self.engine_seconds = max(self.engine_seconds, output.timing.engine_seconds)
        last = output.finish_reason is not None
        if self.recording:
            self.outputs.append(output)
            self._bytes += _size(output)
            if self._bytes > MOST_RECORDED_BYTES:
                self.recording, self.outputs = False, []
        bill = max(0.0, self.engine_seconds - self._billed)
        for follower in list(self._followers):
            follower.take(output, bill)
            bill = 0.0
        if last:
            self.complete = output.finish_reason not in ("error", "abort")
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._followers = []
        self._on_end(self)


class Follower:
    """One request's stream of a flight's outputs, see :class:`galley.service.streams.Outputs`.

    Attributes:
        deadline: on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        flight: Flight,
        request_id: str,
        deadline: float,
        budget: UnreadBudget,
        prompt: int | None,
    ) -> None:
        """Create a stream; :meth:`Flight.join` calls this.

        Args:
            flight: the flight.
            request_id: its outputs get this id.
            deadline: see :meth:`Flight.join`.
            budget: the memory for unread outputs.
            prompt: the tokens of the prompt, all of which count as cached; None for the first follower,
                whose prompt the engine computes.
        """
        self.deadline = deadline
        self._flight = flight
        self._id = request_id
        self._prompt = prompt
        self._joined = time.monotonic()
        self._first: float | None = None
        self._ended = False
        self._unread = Unread(budget, on_cut=lambda: flight.leave(self, whole=False))
        self._timer: asyncio.TimerHandle | None = None
        if deadline != math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, deadline - self._joined), self.expire)

    def take(self, output: Output, bill: float) -> None:
        """Add an output; ``bill``: the engine time that this follower pays for."""
        passed = time.monotonic() - self._joined
        if self._prompt is not None:
            output = self._own(output, passed, bill)
        elif output.timing is not None and output.timing.engine_seconds != bill:
            timing = msgspec.structs.replace(output.timing, engine_seconds=bill)
            output = msgspec.structs.replace(output, timing=timing)
        self._first = passed if self._first is None else self._first
        self._unread.put(output)

    def _own(self, output: Output, passed: float, bill: float) -> Output:
        """Return the output with this request's id and times."""
        timing = None
        if self._first is None or output.timing is not None:
            first = passed if self._first is None else self._first
            timing = Timing(first_token=first, total=passed, engine_seconds=bill)
        return msgspec.structs.replace(
            output, request_id=self._id, cached_tokens=self._prompt or 0, timing=timing
        )

    def fail(self, error: GalleyError) -> None:
        """End the stream with an error."""
        self._stop_timer()
        self._unread.fail(error)

    def expire(self) -> None:
        """End the stream because its deadline has passed."""
        when = "while it waited" if self._first is None else "before it was complete"
        self.fail(DeadlineExceeded(f"The request's deadline passed {when}"))
        self._flight.leave(self, whole=False)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        """Wait for the next Output. Raises DeadlineExceeded or SlowReader if there will be none."""
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._unread.get()
        except GalleyError:
            self._ended = True
            raise
        self._ended = output.finish_reason is not None
        if self._ended:
            self._stop_timer()
        return output

    def cancel(self, *, whole: bool = False) -> None:
        """Leave the flight, which continues if others follow it."""
        self._ended = True
        self._stop_timer()
        self._unread.clear()
        self._flight.leave(self, whole=whole)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Replay:
    """A stored answer as a stream, see :class:`galley.service.streams.Outputs`."""

    def __init__(
        self,
        outputs: Sequence[Output],
        request: EngineRequest,
        engine: Engine,
        deadline: float,
        pace: float | None,
    ) -> None:
        """Create a stream of an answer.

        Args:
            outputs: the answer, at least one Output.
            request: the request that it answers.
            engine: computes what follows if the answer ends early and the reader wants more of it.
            deadline: of the request, on the monotonic clock.
            pace: tokens per second; None: all at once.
        """
        self._outputs = outputs
        self._request = request
        self._engine = engine
        self._deadline = deadline
        self._began = time.monotonic()
        self._ended = False
        self._rest: Outputs | None = None
        parts = [as_one(outputs)]
        if pace is not None:
            parts = _tokens_apart(parts[0])
        self._parts = parts[::-1]
        self._pause = 0.0 if pace is None else 1.0 / pace

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        """Return the next part of the answer. Raises DeadlineExceeded if it would be too late."""
        if self._ended:
            raise StopAsyncIteration
        if self._parts:
            output = await self._next()
        else:
            output = await self._further()
        self._ended = output.finish_reason is not None
        return output

    async def _next(self) -> Output:
        if self._pause:
            if time.monotonic() + self._pause > self._deadline:
                raise DeadlineExceeded("The request's deadline passed before it was complete")
            await asyncio.sleep(self._pause)
        output = self._parts.pop()
        passed = time.monotonic() - self._began
        return msgspec.structs.replace(
            output,
            request_id=self._request.id,
            cached_tokens=self._request.payload.reads,
            timing=Timing(first_token=passed, total=passed),
        )

    async def _further(self) -> Output:
        if self._rest is None:
            payload = self._request.payload.resumed(tokens_in(self._outputs), answered=True)
            request = msgspec.structs.replace(self._request, payload=payload)
            [self._rest] = await self._engine.submit_when_room([request], self._deadline)
        return await anext(self._rest)

    def cancel(self, *, whole: bool = False) -> None:
        """End the stream."""
        self._ended = True
        if self._rest is not None:
            self._rest.cancel(whole=whole)


def _size(output: Output) -> int:
    tensors = output.result.outputs if isinstance(output.result, Tensors) else ()
    return size_of(output) + sum(len(tensor.data) for tensor in tensors)


def _tokens_apart(output: Output) -> list[Output]:
    """Return outputs of one token each that make up ``output``."""
    result = output.result
    if not isinstance(result, Tokens) or len(result.tokens) < 2:
        return [output]
    parts = []
    for index, token in enumerate(result.tokens):
        own = Tokens(
            tokens=[token],
            logprobs=None if result.logprobs is None else result.logprobs[index : index + 1],
            scores=None if result.scores is None else result.scores[index : index + 1],
            prompt_logprobs=result.prompt_logprobs if index == 0 else None,
            no_speech_prob=result.no_speech_prob if index == 0 else None,
        )
        parts.append(Output(request_id="", result=own))
    parts[-1] = msgspec.structs.replace(parts[-1], finish_reason=output.finish_reason)
    return parts
