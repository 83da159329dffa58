"""Generates text from one or more prompts; the sequences are submitted, read and cancelled together."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, Self

import msgspec

from galley.cache.question import Question
from galley.errors import DeadlineExceeded, Draining, EngineError, RequestError, SlowReader
from galley.gateway.call import Call
from galley.gateway.call_stream import CallStream
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.receipt import Receipt
from galley.gateway.served import ServedModel
from galley.service.requests import check_cache_salt, expand
from galley.text.stream import Delta, TextStream
from galley.tools.events import Event, Text
from galley.tools.parser import Parser
from galley.traffic.recorder import Recorded
from galley.types import SamplingParams, TokenLogprob
from galley.types.transfers import KVPeer

Finish = Literal["stop", "length", "tool_calls"]


class Usage(NamedTuple):
    """Tokens of one request, all choices together; ``cached`` are those of ``prompt`` from the cache.

    ``reasoning`` are those of ``generated`` that were thinking; None if thinking was not parsed.
    """

    prompt: int
    cached: int
    generated: int
    reasoning: int | None = None


class Piece(msgspec.Struct, frozen=True):
    """New output of one choice.

    Attributes:
        events: its text, thinking and calls. ``delta.text`` is the model's raw text, markers included.
        finish: the finish reason; "tool_calls" is a "stop" after complete calls.
        prompt_logprobs: sent once, with the first piece of a prompt's first choice.
    """

    choice: int
    delta: Delta
    events: list[Event]
    finish: Finish | None
    prompt_logprobs: list[TokenLogprob] | None = None


class Generation:
    """The choices of one request for text: ``n`` for each prompt, in the order of the prompts.

    Its creator must close it, which also cancels in the engine what is still running.
    """

    def __init__(
        self,
        call: Call,
        choices: Sequence["_Choice"],
        prompt_lengths: Sequence[int],
        recorded: Recorded | None,
    ) -> None:
        """Wrap ``choices``, which are already in the engine. Created by :meth:`submit`."""
        self._call = call
        self._choices = choices
        self._prompt_lengths = prompt_lengths
        self._closed = False
        self._recorded = recorded

    @classmethod
    async def submit(
        cls,
        call: Call,
        params: SamplingParams,
        prompts: Sequence[list[int]],
        *,
        priority: int,
        cache_salt: str | None,
        prompt_param: str,
        parser: Callable[[], Parser | None] | None = None,
        default_tokens: int | None = None,
        question: Question | None = None,
    ) -> Self:
        """Submit all sequences to the engine, or none.

        Args:
            call: opened for the request.
            params: how to generate.
            prompts: token ids.
            priority, cache_salt: the request's values.
            prompt_param: the field to name if a prompt is at fault.
            parser: creates the parser of a choice's output; without one, all of it is text.
            default_tokens: ``max_tokens`` of a choice if ``params`` does not set it; None: the model's
                default.
            question: of a chat, what the response cache may compare by meaning.

        Raises:
            RequestError: the request cannot be honored by this model.
            Unavailable: the queue is full, the tenant has no tokens left, or the engine is not ready.
            EngineFailed: the engine will not come back.
        """
        info = call.info
        if (derived := call.caller.derived) is not None:
            params, default_tokens = derived.applied(params), derived.max_tokens or default_tokens
        if default_tokens is not None:
            text = info.require_text()
            defaults = msgspec.structs.replace(text.defaults, max_tokens=default_tokens)
            text = msgspec.structs.replace(text, defaults=defaults)
            info = msgspec.structs.replace(info, text=text)
        call.caller.trace.sampling = params
        if cache_salt is not None:
            check_cache_salt(info)
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
        seeded = params.seed is not None
        streams = await call.submit(requests, reserve=reserve, seeded=seeded, question=question)
        choices = [
            _choice(index, call, stream, params, parser) for index, stream in enumerate(streams)
        ]
        call.prompts_taken(sum(lengths))
        return cls(call, choices, lengths, call.recorded(prompts, params, cache_salt))

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the output of the choices as it arrives, until all have finished.

        Raises:
            RequestError: the engine does not do what the request says.
            EngineError: the engine gave up a sequence.
            Draining: the server stopped before the end.
        """
        sources = [choice.pieces() for choice in self._choices]
        # A generator around another one costs time for every token.
        return sources[0] if len(sources) == 1 else _merged(sources)

    @property
    def choices(self) -> int:
        """The number of choices."""
        return len(self._choices)

    def usage(self) -> Usage:
        """Return the tokens so far.

        A prompt counts once, whatever ``n`` is, with the cache hits of its first choice.
        """
        n = len(self._choices) // len(self._prompt_lengths)
        return Usage(
            prompt=sum(self._prompt_lengths),
            cached=sum(choice.cached_tokens for choice in self._choices[::n]),
            generated=sum(len(choice.text.token_ids) for choice in self._choices),
            reasoning=None
            if self._choices[0].parser is None
            else sum(choice.reasoning_tokens for choice in self._choices),
        )

    def stop_string(self, choice: int) -> str | None:
        """Return the stop string that ended the choice's text, or None."""
        return self._choices[choice].text.stop_string

    @property
    def kv_peer(self) -> KVPeer | None:
        """Where the keys and values of the prompt can be fetched, if the request says that they will be."""
        return self._choices[0].kv_peer

    @property
    def receipt(self) -> Receipt:
        """Times and cost of the choices that have ended."""
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
        if self._recorded is not None:
            self._recorded.ended(
                self._tokens_by_prompt(),
                ",".join(sorted(reason or "unfinished" for reason in reasons)),
                cached=usage.cached,
                ttft_ms=self._call.caller.record.get("ttft_ms"),
                duration_ms=1000 * (time.monotonic() - self._call.caller.arrived),
            )

    def _tokens_by_prompt(self) -> list[list[list[int]]]:
        """Return the token ids of each choice of each prompt."""
        tokens = [choice.text.token_ids for choice in self._choices]
        n = len(tokens) // len(self._prompt_lengths)
        return [tokens[begin : begin + n] for begin in range(0, len(tokens), n)]


def check_count(served: ServedModel, prompts: int, n: int, prompt_param: str) -> None:
    """Check the number of sequences; call this before any work on the prompts.

    Raises:
        RequestError: ``n`` choices for each of ``prompts`` prompts can never fit the queue.
    """
    most = served.settings.max_queue + served.settings.running_limit
    if prompts * n > most:
        raise RequestError(
            f"{prompts} prompts with n {n} are {prompts * n} sequences; this server allows at most "
            f"{most}",
            param="n" if n > 1 else prompt_param,
        )


class _Choice:
    """One sequence, which converts the engine's Outputs to text."""

    def __init__(
        self, index: int, call: Call, stream: CallStream, text: TextStream, parser: Parser | None
    ) -> None:
        self.text = text
        self.parser = parser
        self.cached_tokens = 0
        self._offsets: list[int] = []  # of each token's text, if there is a parser
        self._index = index
        self._call = call
        self._stream = stream
        self._open = True

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the text that each of the engine's Outputs adds, up to the end of the text."""
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
                    error = output.error or "The engine gave up the request"
                    raise RequestError(error) if output.refused else EngineError(error)
                delta = self.text.feed(output)
                events = self._events(delta)
                finish = self._finish(delta)
                if finish is not None:
                    # A stop string or a final call, which the engine cannot detect.
                    if output.finish_reason is None:
                        self._stream.cancel(whole=True)
                    self._open = False
                    self.text.finish_reason = "length" if finish == "length" else "stop"
                    self._call.sequence_ended(self._stream, self.text.finish_reason)
                yield Piece(self._index, delta, events, finish, output.generated.prompt_logprobs)
                if finish is not None:
                    return
        except (DeadlineExceeded, SlowReader) as error:
            self._open = False
            self._call.sequence_lost("deadline" if isinstance(error, DeadlineExceeded) else "error")
            raise

    def _events(self, delta: Delta) -> list[Event]:
        if self.parser is None:
            return [Text(delta.text)] if delta.text else []
        self._offsets += delta.text_offsets
        events = self.parser.feed(delta.text, delta.marks)
        return events if delta.finish_reason is None else events + self.parser.finish()

    def _finish(self, delta: Delta) -> Finish | None:
        if self.parser is not None and self.parser.finished:
            return "tool_calls"
        if delta.finish_reason is None:
            return None
        if delta.finish_reason == "length":
            return "length"
        return "tool_calls" if self.parser is not None and self.parser.calls else "stop"

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens so far that are thinking, its markers included."""
        spans = self.parser.reasoning_spans if self.parser is not None else ()
        at = partial(bisect_left, self._offsets)
        return sum(at(end) - at(begin) for begin, end in spans)

    @property
    def kv_peer(self) -> KVPeer | None:
        """See :attr:`CallStream.kv_peer`."""
        return self._stream.kv_peer

    def close(self) -> None:
        """Abort the sequence in the engine if it still runs. Idempotent."""
        if self._open:
            self._open = False
            self._stream.cancel()
            self._call.sequence_lost("cancelled")


def _choice(
    index: int,
    call: Call,
    stream: CallStream,
    params: SamplingParams,
    new_parser: Callable[[], Parser | None] | None,
) -> _Choice:
    parts = call.backend.require_text()
    parser = None if new_parser is None else new_parser()
    tokenizer, eos = parts.tokenizer, call.info.require_text().eos_token_ids
    markers = parts.format.marker_tokens(tokenizer, parser) if parser else frozenset()
    text = TextStream.for_request(tokenizer, params, eos, markers=markers)
    return _Choice(index, call, stream, text, parser)


async def _merged(sources: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of all ``sources`` as they arrive; the first error ends it."""
    # Bounded, so that chunks do not pile up while a slow reader handles one.
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
                    try:
                        raise error
                    finally:
                        del error  # whose traceback refers to this frame
                case piece:
                    yield piece
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        while not queue.empty():  # an error in it refers to a frame that refers to it
            queue.get_nowait()
