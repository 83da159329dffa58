"""Chat completions: answers to conversations, whole and as chunks."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Literal, NotRequired, Self, TypedDict

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation, Piece, check_count
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import renamed
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.encoded import encoded
from galley.protocols.openai.transfers import KVTransfer, take_transfer, transfer_of
from galley.protocols.openai.usage import (
    ChunkUsage,
    Usage,
    usage,
)
from galley.text.stream import TokenText, describe
from galley.text.tokenizer import Tokenizer
from galley.tools.events import Arguments, CallStart, Event, Reasoning, Text, whole
from galley.types import TokenLogprob

ENDPOINT: Final = "/v1/chat/completions"

LOWEST_LOGPROB: Final = -9999.0
"""Value by which OpenAI's API represents minus infinity, which JSON cannot express."""


class TopLogprob(TypedDict):
    """One alternative token; ``bytes`` is exact where ``token`` is not valid UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """The chosen token and its best alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat choice."""

    content: list[ChatLogprob]
    refusal: None


class CalledFunction(TypedDict, total=False):
    """A called function; ``arguments`` is JSON object text, or in a stream a piece of that text."""

    name: str
    arguments: str


class ToolCallDetails(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(TypedDict):
    """The part of call ``index`` that a chunk adds; the first part has id, type and name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction


class ChatMessage(TypedDict):
    """The answer. ``content`` is null if there are calls and no text.

    ``reasoning_content`` is the model's thinking; ``warning`` explains why calls in the text could
    not be parsed.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDetails]]
    warning: NotRequired[str]


class ChatChoice(TypedDict):
    """One complete answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(TypedDict):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    kv_transfer_params: NotRequired[KVTransfer]


class ChatDelta(TypedDict, total=False):
    """The part of a message that a chunk adds."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]
    warning: str


class ChatChunkChoice(TypedDict):
    """The part of one choice that a chunk adds."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(ChunkUsage):
    """One event of a streamed chat answer; `stream_options` determine if ``usage`` is present."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]


class ChatAnswer:
    """The answer to one request in progress; read it once, either whole or as chunks."""

    def __init__(self, call: Call, parsed: ChatRequest, generation: Generation) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._model = call.model
        self._parsed = parsed
        self._caller = call.caller
        self._generation = generation
        self._tokenizer = call.backend.require_text().tokenizer

    @classmethod
    async def start(cls, served: ServedModel, parsed: ChatRequest, caller: Caller) -> Self:
        """Submit the request to the engine; ``parsed.stream`` is ignored.

        Raises:
            GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
        """
        # The token limit has two names in chat; errors use the one that the request used.
        names = {"max_tokens": parsed.limit_name}
        with renamed(names), opened(Call(served, ENDPOINT, caller)) as call:
            caller.keep_seconds = parsed.keep_seconds
            params = parsed.sampling()
            conversation = parsed.conversation()
            check_count(served, 1, params.n, "messages")
            take_transfer(parsed.kv_transfer_params, call, streams=bool(parsed.stream))
            call.check_early(parsed.priority or 0)
            generation = await converse(
                call,
                conversation,
                params,
                priority=parsed.priority or 0,
                cache_salt=parsed.cache_salt,
                constrained_by=parsed.constrained_by,
            )
        return cls(call, parsed, generation)

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> ChatCompletion:
        """Return the complete answer.

        Raises:
            EngineError: the engine failed.
            Draining: the server is shutting down.
        """
        choices = [_Whole(index) for index in range(self._generation.choices)]
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.choice].add(piece, _entries(self._tokenizer, piece))
        answer: ChatCompletion = {
            "id": f"chatcmpl-{self._caller.request_id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice.built(logprobs=bool(self._parsed.logprobs)) for choice in choices],
            "usage": usage(self._generation.usage(), self._generation.receipt),
        }
        if (transfer := transfer_of(self._generation.kv_peer)) is not None:
            answer["kv_transfer_params"] = transfer
        return answer

    async def events(self) -> AsyncGenerator[ChatChunk, None]:
        """Yield the answer in chunks. Raises as :meth:`whole`."""
        parsed, created = self._parsed, int(time.time())

        def chunk(*choices: ChatChunkChoice) -> ChatChunk:
            value: ChatChunk = {
                "id": f"chatcmpl-{self._caller.request_id}",
                "object": "chat.completion.chunk",
                "created": created,
                "model": self._model,
                "choices": list(choices),
            }
            if parsed.continuous_usage:
                return {**value, "usage": usage(self._generation.usage())}
            return {**value, "usage": None} if parsed.include_usage else value

        for index in range(self._generation.choices):
            yield chunk(_choice(index, {"role": "assistant", "content": ""}))
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                entries = _entries(self._tokenizer, piece)
                logprobs: ChatLogprobs | None = None
                if parsed.logprobs:
                    logprobs = {"content": entries, "refusal": None}
                deltas = list(filter(None, map(_delta, piece.events)))
                # Log-probabilities are sent with the delta of their tokens, or with an empty one.
                for delta in deltas or ([{"content": ""}] if entries else ()):
                    yield chunk(_choice(piece.choice, delta, logprobs))
                    logprobs = {"content": [], "refusal": None} if parsed.logprobs else None
                if piece.finish is not None:
                    yield chunk(_choice(piece.choice, {}, finish=piece.finish))
        if parsed.include_usage:
            generation = self._generation
            yield {**chunk(), "usage": usage(generation.usage(), generation.receipt)}


class _Whole:
    """A choice that grows piece by piece.

    Log-probabilities, of which there may be millions, are kept as JSON.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._events: list[Event] = []
        self._entries: list[ChatLogprob] = []
        self._finish: Finish = "stop"

    def add(self, piece: Piece, entries: Sequence[ChatLogprob]) -> None:
        self._events += piece.events
        self._entries += [encoded(entry) for entry in entries]
        self._finish = piece.finish or self._finish

    def built(self, *, logprobs: bool) -> ChatChoice:
        answer = whole(self._events)
        message: ChatMessage = {
            "role": "assistant",
            "content": None if answer.calls and not answer.text else answer.text,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        if answer.warnings:
            message["warning"] = "; ".join(answer.warnings)
        return {
            "index": self._index,
            "message": message,
            "logprobs": {"content": self._entries, "refusal": None} if logprobs else None,
            "finish_reason": self._finish,
        }


def _delta(event: Event) -> ChatDelta | None:
    """Return the part of a chunk that represents an event; None if there is none."""
    match event:
        case Text(warning=None):
            return {"content": event.text}
        case Text(warning=str(warning), repeats=True):
            return {"warning": warning}
        case Text(warning=str(warning)):
            return {"content": event.text, "warning": warning}
        case Reasoning():
            return {"reasoning_content": event.text}
        case CallStart():
            function: CalledFunction = {"name": event.name, "arguments": ""}
            return {
                "tool_calls": [
                    {
                        "index": event.index,
                        "id": event.id,
                        "type": "function",
                        "function": function,
                    }
                ]
            }
        case Arguments():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    return None


def _choice(
    index: int,
    delta: ChatDelta,
    logprobs: ChatLogprobs | None = None,
    finish: Finish | None = None,
) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _entries(tokenizer: Tokenizer, piece: Piece) -> list[ChatLogprob]:
    return [_entry(tokenizer, logprob) for logprob in piece.delta.logprobs or []]


def _entry(tokenizer: Tokenizer, logprob: TokenLogprob) -> ChatLogprob:
    chosen, top = describe(tokenizer, logprob)
    return {**_token(chosen), "top_logprobs": [_token(entry) for entry in top]}


def _token(entry: TokenText) -> TopLogprob:
    return {
        "token": entry.text,
        "logprob": max(entry.logprob, LOWEST_LOGPROB),
        "bytes": list(entry.bytes),
    }
