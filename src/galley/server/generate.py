"""One HTTP request's sequences: submitted together, read together, cancelled together."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from starlette.requests import HTTPConnection

from galley.errors import Draining, EngineError, RequestError
from galley.observe.metrics import ModelMetrics
from galley.server.auth import cache_salt
from galley.server.lifecycle import RETRY_SECONDS
from galley.server.responses import Finish, Usage
from galley.server.schemas import GenerationRequest
from galley.server.served import ServedModel
from galley.service.client import OutputStream
from galley.service.requests import expand
from galley.text.stream import Delta, TextStream
from galley.types import SamplingParams, Timing, TokenLogprob


@dataclass(frozen=True)
class Origin:
    """Where a request comes from.

    Attributes:
        request_id: unique; the engine's request ids and the answer's id are made of it.
        key: identity of the API key; keys never share cached prefixes.
        facts: what its log line will tell.
        arrived: on the monotonic clock, in seconds.
    """

    request_id: str
    key: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    arrived: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, request: HTTPConnection) -> Self:
        """As the middlewares left it."""
        state = request.state
        return cls(state.request_id, getattr(state, "key", ""), state.facts, state.arrived)


@dataclass(frozen=True)
class Piece:
    """What one choice gained.

    ``prompt_logprobs`` come once, with the first piece of a prompt's first choice.
    """

    choice: int
    delta: Delta
    finish: Finish | None
    prompt_logprobs: list[TokenLogprob] | None = None


class Generation:
    """The choices of one request: ``n`` for each prompt, in the order of the prompts.

    Use as a context manager: leaving it cancels what still runs, in the engine too.
    """

    def __init__(
        self,
        metrics: ModelMetrics,
        origin: Origin,
        choices: Sequence["_Choice"],
        prompt_lengths: Sequence[int],
    ) -> None:
        """Made by :meth:`submit`; ``choices`` are already in the engine."""
        self._metrics = metrics
        self._origin = origin
        self._choices = choices
        self._prompt_lengths = prompt_lengths
        self._closed = False

    @classmethod
    def submit(
        cls,
        served: ServedModel,
        asked: GenerationRequest,
        params: SamplingParams,
        prompts: Sequence[list[int]],
        *,
        endpoint: str,
        prompt_param: str,
        origin: Origin,
    ) -> Self:
        """Hand all sequences to the engine, or none.

        Args:
            prompts: token ids.
            endpoint: the route, for metrics.
            prompt_param: the field to name if a prompt is at fault.

        Raises:
            RequestError: the request cannot be honoured by this model.
            Unavailable: the queue is full, or the engine not ready.
            EngineFailed: the engine will not come back.
        """
        engine, tokenizer = served.backend().engine, served.backend().tokenizer
        requests = [
            request
            for index, prompt in enumerate(prompts)
            for request in expand(
                prompt,
                params,
                engine.info,
                request_id=f"{origin.request_id}-{index}",
                priority=asked.priority or 0,
                cache_salt=cache_salt(origin.key, asked.cache_salt),
                prompt_param=prompt_param,
            )
        ]
        choices = []
        for index, stream in enumerate(engine.submit_all(requests)):
            text = TextStream.for_request(tokenizer, params, engine.info.eos_token_ids)
            clock = _Clock(served.metrics, endpoint, origin.arrived)
            choices.append(_Choice(index, stream, text, clock))
        lengths = [len(prompt) for prompt in prompts]
        served.metrics.prompts_taken(sum(lengths))
        return cls(served.metrics, origin, choices, lengths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the choices gain, as it comes, until all have finished.

        Raises:
            EngineError: the engine gave a sequence up.
            Draining: the server stopped before the end.
        """
        async with aclosing(_merged([choice.pieces() for choice in self._choices])) as pieces:
            async for piece in pieces:
                yield piece

    @property
    def choices(self) -> int:
        """How many there are."""
        return len(self._choices)

    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once, whatever ``n``: as its first choice found it."""
        n = len(self._choices) // len(self._prompt_lengths)
        cached = sum(choice.cached_tokens for choice in self._choices[::n])
        prompt_tokens = sum(self._prompt_lengths)
        generated = sum(len(choice.text.token_ids) for choice in self._choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def close(self) -> None:
        """Cancel the choices that still run, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            choice.close()
        usage = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self._metrics.prefixes_reused(cached)
        self._origin.facts.update(
            prompt=usage["prompt_tokens"],
            cached=cached,
            generated=usage["completion_tokens"],
            finish=",".join(sorted({c.text.finish_reason or "unfinished" for c in self._choices})),
        )


def check_count(served: ServedModel, prompts: int, n: int, prompt_param: str) -> None:
    """To be called before anything is done for the prompts.

    Raises:
        RequestError: ``n`` choices for each of so many prompts are more than ever fit the queue.
    """
    most = served.settings.max_queue + served.settings.running_limit
    if prompts * n > most:
        raise RequestError(
            f"{prompts} prompts with n {n} are {prompts * n} sequences; this server holds at most "
            f"{most}",
            param="n" if n > 1 else prompt_param,
        )


class _Clock:
    """What metrics learn of one sequence."""

    def __init__(self, metrics: ModelMetrics, endpoint: str, arrived: float) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._arrived = arrived
        self._first: float | None = None
        self._count = 0

    def tokens(self, count: int) -> None:
        now = time.monotonic()
        if count and self._first is None:
            self._first = now
            self._metrics.first_token(self._endpoint, now - self._arrived)
        self._count += count
        self._metrics.step_seen(count)

    def finished(self, reason: Finish, timing: Timing | None) -> None:
        now = time.monotonic()
        per_token = None
        if self._first is not None and self._count > 1:
            per_token = (now - self._first) / (self._count - 1)
        self._metrics.sequence_finished(self._endpoint, reason)
        self._metrics.sequence_timed(
            self._endpoint,
            duration=now - self._arrived,
            queued=timing.queued if timing else None,
            per_token=per_token,
        )

    def cancelled(self) -> None:
        self._metrics.sequence_finished(self._endpoint, "cancelled")

    def failed(self) -> None:
        self._metrics.sequence_finished(self._endpoint, "error")


class _Choice:
    """One sequence: the engine's outputs on one side, text on the other."""

    def __init__(self, index: int, stream: OutputStream, text: TextStream, clock: _Clock) -> None:
        self.text = text
        self.cached_tokens = 0
        self._index = index
        self._stream = stream
        self._clock = clock
        self._open = True

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the engine's outputs add, up to the end of the text."""
        async for output in self._stream:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
            if output.finish_reason in ("error", "abort"):
                self._open = False
                self._clock.failed()
                if output.finish_reason == "abort":
                    raise Draining(
                        "The server stopped before the answer was complete",
                        retry_after=RETRY_SECONDS,
                    )
                raise EngineError(output.error or "The engine gave the request up")
            delta = self.text.feed(output)
            self._clock.tokens(len(delta.token_ids))
            finish: Finish | None = None
            if delta.finish_reason is not None:
                finish = "length" if delta.finish_reason == "length" else "stop"
                if output.finish_reason is None:  # a stop string, of which the engine knows nothing
                    self._stream.cancel()
                self._open = False
                self._clock.finished(finish, output.timing)
            yield Piece(self._index, delta, finish, output.prompt_logprobs)
            if finish is not None:
                return

    def close(self) -> None:
        """Abort in the engine what still runs. Idempotent."""
        if self._open:
            self._open = False
            self._stream.cancel()
            self._clock.cancelled()


async def _merged(sources: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """All that ``sources`` give, as it comes; the first error ends it."""
    if len(sources) == 1:
        async for piece in sources[0]:
            yield piece
        return
    # Bounded, so that a reader who is slow with one piece does not make this pile up the others.
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(maxsize=2 * len(sources))

    async def pump(source: AsyncGenerator[Piece, None]) -> None:
        try:
            async for piece in source:
                await queue.put(piece)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(source)) for source in sources]
    try:
        left = len(pumps)
        while left:
            match await queue.get():
                case None:
                    left -= 1
                case Exception() as error:
                    raise error
                case piece:
                    yield piece
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
