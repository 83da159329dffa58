"""Text from a prompt, or several: sequences that are submitted, read and cancelled together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from galley.errors import DeadlineExceeded, Draining, EngineError, RequestError, SlowReader
from galley.gateway.call import Call, CallStream
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.receipt import Receipt
from galley.gateway.served import ServedModel
from galley.service.requests import expand
from galley.text.stream import Delta, TextStream
from galley.types import SamplingParams, TokenLogprob

Finish = Literal["stop", "length"]


class Usage(NamedTuple):
    """Tokens of one request, all choices together; ``cached`` are those of ``prompt`` not computed anew."""

    prompt: int
    cached: int
    generated: int


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
    """The choices of one request for text: ``n`` for each prompt, in the order of the prompts.

    Whoever makes one closes it: what still runs is cancelled, in the engine too.
    """

    def __init__(
        self, call: Call, choices: Sequence["_Choice"], prompt_lengths: Sequence[int]
    ) -> None:
        """Made by :meth:`submit`; ``choices`` are already in the engine."""
        self._call = call
        self._choices = choices
        self._prompt_lengths = prompt_lengths
        self._closed = False

    @classmethod
    def submit(
        cls,
        call: Call,
        params: SamplingParams,
        prompts: Sequence[list[int]],
        *,
        priority: int,
        cache_salt: str | None,
        prompt_param: str,
    ) -> Self:
        """Hand all sequences to the engine, or none.

        Args:
            prompts: token ids.
            priority, cache_salt: as the request has them.
            prompt_param: the field to name if a prompt is at fault.

        Raises:
            RequestError: the request cannot be honoured by this model.
            Unavailable: the queue is full, the tenant has no tokens left, or the engine is not ready.
            EngineFailed: the engine will not come back.
        """
        info, tokenizer = call.info, call.backend.tokenizer
        call.caller.trace.sampling = params
        requests = [
            request
            for index, prompt in enumerate(prompts)
            for request in expand(
                prompt,
                params,
                info,
                request_id=f"{call.caller.request_id}-{index}",
                priority=priority,
                cache_salt=call.caller.cache_salt(cache_salt),
                prompt_param=prompt_param,
                context=call.caller.tenant.max_context,
            )
        ]
        lengths = [len(prompt) for prompt in prompts]
        reserve = sum(lengths) + len(requests) * (params.max_tokens or 0)
        choices = [
            _Choice(
                index, call, stream, TextStream.for_request(tokenizer, params, info.eos_token_ids)
            )
            for index, stream in enumerate(call.submit_all(requests, reserve=reserve))
        ]
        call.prompts_taken(sum(lengths))
        return cls(call, choices, lengths)

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
        return Usage(
            prompt=sum(self._prompt_lengths),
            cached=sum(choice.cached_tokens for choice in self._choices[::n]),
            generated=sum(len(choice.text.token_ids) for choice in self._choices),
        )

    @property
    def receipt(self) -> Receipt:
        """What the choices that have ended took."""
        return self._call.receipt

    def close(self) -> None:
        """Cancel the choices that still run, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            choice.close()
        self._call.close()
        usage = self.usage()
        reasons = {choice.text.finish_reason for choice in self._choices}
        self._call.texts_ended(
            prompt=usage.prompt,
            cached=usage.cached,
            generated=usage.generated,
            reason=",".join(sorted(reason or "unfinished" for reason in reasons)),
            whole=None not in reasons,
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


class _Choice:
    """One sequence: the engine's Outputs on one side, text on the other."""

    def __init__(self, index: int, call: Call, stream: CallStream, text: TextStream) -> None:
        self.text = text
        self.cached_tokens = 0
        self._index = index
        self._call = call
        self._stream = stream
        self._open = True

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the engine's Outputs add, up to the end of the text."""
        try:
            async for output in self._stream:
                if self._stream.tokens == len(output.tokens) > 0:
                    self._call.sequence_begun(self._stream)
                self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
                if output.finish_reason in ("error", "abort"):
                    self._open = False
                    self._call.sequence_lost("error")
                    if output.finish_reason == "abort":
                        raise Draining(
                            "The server stopped before the answer was complete",
                            retry_after=RETRY_SECONDS,
                        )
                    raise EngineError(output.error or "The engine gave the request up")
                delta = self.text.feed(output)
                finish: Finish | None = None
                if delta.finish_reason is not None:
                    finish = "length" if delta.finish_reason == "length" else "stop"
                    if (
                        output.finish_reason is None
                    ):  # a stop string, of which the engine knows nothing
                        self._stream.cancel()
                    self._open = False
                    self._call.sequence_ended(self._stream, finish)
                yield Piece(self._index, delta, finish, output.prompt_logprobs)
                if finish is not None:
                    return
        except (DeadlineExceeded, SlowReader) as error:
            self._open = False
            self._call.sequence_lost("deadline" if isinstance(error, DeadlineExceeded) else "error")
            raise

    def close(self) -> None:
        """Abort in the engine what still runs. Idempotent."""
        if self._open:
            self._open = False
            self._stream.cancel()
            self._call.sequence_lost("cancelled")


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
