"""Anthropic's Messages API: answers, whole and as events, and errors."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Literal, NotRequired, Self, TypedDict

import msgspec

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation
from galley.gateway.served import ServedModel
from galley.protocols.anthropic.schemas import MessagesRequest
from galley.protocols.common.errors import naming_message, renamed, to_api_error
from galley.protocols.common.generated import whole_answer
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text

ENDPOINT: Final = "/v1/messages"

_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NAMES: Final = {
    "response_format": "output_config",
    "reasoning_effort": "thinking",
    "stop": "stop_sequences",
}
"""Field names in the core's errors -> this protocol's names."""

named_as_given: Final = partial(renamed, _NAMES)
"""A context in which errors name the fields of this protocol."""

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class ErrorDetail(TypedDict):
    """The error's type and message."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """Body of every answer with a status other than 2xx."""

    type: Literal["error"]
    error: ErrorDetail


class ThinkingTokens(TypedDict):
    """Number of generated tokens that were thinking."""

    thinking_tokens: int


class AnthropicUsage(TypedDict):
    """Token counts. ``input_tokens`` excludes prompt tokens that the prefix cache supplied."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: Literal["standard"]


class AppliedEdits(TypedDict):
    """The parts dropped from the conversation: always none."""

    applied_edits: list[dict[str, Any]]


class AnthropicAnswer(TypedDict):
    """The answer to one request; ``content`` has blocks of the types text, thinking and tool_use."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    context_management: NotRequired[AppliedEdits]


class InputTokens(TypedDict):
    """Number of tokens of a conversation, as rendered by the model's chat template."""

    input_tokens: int


class MessageEvent(TypedDict):
    """An event of a stream; its type determines its fields."""

    type: str
    message: NotRequired[AnthropicAnswer]
    index: NotRequired[int]
    content_block: NotRequired[dict[str, Any]]
    delta: NotRequired[dict[str, Any]]
    usage: NotRequired[AnthropicUsage]
    context_management: NotRequired[AppliedEdits]


def envelope(error: Exception) -> AnthropicError:
    """Return the error body in Anthropic's format."""
    api_error = to_api_error(error)
    kind = _ERRORS.get(
        api_error.status, "api_error" if api_error.status >= 500 else "invalid_request_error"
    )
    return {"type": "error", "error": {"type": kind, "message": naming_message(error)}}


class MessageAnswer:
    """The answer to one request in progress; read it once, either whole or as events."""

    def __init__(self, call: Call, parsed: MessagesRequest, generation: Generation) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._call = call
        self._parsed = parsed
        self._generation = generation

    @classmethod
    async def start(cls, served: ServedModel, parsed: MessagesRequest, caller: Caller) -> Self:
        """Submit the request to the engine; ``parsed.stream`` is ignored.

        Raises:
            GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
        """
        with named_as_given(), opened(Call(served, ENDPOINT, caller)) as call:
            caller.keep_seconds = parsed.keep_seconds
            params, conversation = parsed.sampling(), parsed.conversation()
            call.check_early(0)
            generation = await converse(
                call,
                conversation,
                params,
                constrained_by=parsed.constrained_by,
                up_to_context=True,
            )
        return cls(call, parsed, generation)

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> AnthropicAnswer:
        """Return the complete answer.

        Raises:
            EngineError: the engine failed.
            Draining: the server is shutting down.
        """
        answer, finish = await whole_answer(self._generation)
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            thinking = "" if self._parsed.omits_thinking else answer.reasoning
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if answer.text or not answer.calls:
            content.append({"type": "text", "text": answer.text})
        content += (
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": msgspec.json.decode(call.arguments),
            }
            for call in answer.calls
        )
        return self._message(content, self._reason(finish))

    async def events(self) -> AsyncGenerator[MessageEvent, None]:
        """Yield the answer as Anthropic's stream events. Raises as :meth:`whole`."""
        blocks = _Blocks(omits_thinking=self._parsed.omits_thinking)
        begun, finish = False, None
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if not begun:  # the number of cached tokens is only known now
                    begun = True
                    yield {"type": "message_start", "message": self._message([], None)}
                for event in piece.events:
                    for made in blocks.of(event):
                        yield made
                finish = piece.finish or finish
        for made in blocks.closed():
            yield made
        reason = self._reason(finish)
        delta = {"stop_reason": reason, "stop_sequence": self._stop_sequence(reason)}
        ended: MessageEvent = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        if self._parsed.context_management is not None:
            ended["context_management"] = {"applied_edits": []}
        yield ended
        yield {"type": "message_stop"}

    def _message(self, content: list[dict[str, Any]], reason: StopReason | None) -> AnthropicAnswer:
        message: AnthropicAnswer = {
            "id": f"msg_{self._call.caller.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._call.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": self._stop_sequence(reason),
            "usage": self._usage(),
        }
        if self._parsed.context_management is not None and reason is not None:
            message["context_management"] = {"applied_edits": []}
        return message

    def _reason(self, finish: Finish | None) -> StopReason:
        if finish == "tool_calls":
            return "tool_use"
        if finish == "length":
            whole = self._generation.usage().generated >= self._parsed.max_tokens
            return "max_tokens" if whole else "model_context_window_exceeded"
        return "end_turn" if self._generation.stop_string(0) is None else "stop_sequence"

    def _stop_sequence(self, reason: StopReason | None) -> str | None:
        return self._generation.stop_string(0) if reason == "stop_sequence" else None

    def _usage(self) -> AnthropicUsage:
        counts = self._generation.usage()
        return {
            "input_tokens": counts.prompt - counts.cached,
            "cache_read_input_tokens": counts.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": counts.generated,
            "output_tokens_details": {"thinking_tokens": counts.reasoning or 0},
            "service_tier": "standard",
        }


class _Blocks:
    """Builds events of consecutive content blocks: each starts, grows and stops before the next."""

    def __init__(self, *, omits_thinking: bool = False) -> None:
        self._omits_thinking = omits_thinking
        self._index = -1
        self._open: str | None = None

    def of(self, event: Event) -> Iterator[MessageEvent]:
        match event:
            case Text(repeats=True):
                pass
            case Text():
                yield from self._within("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": event.text})
            case Reasoning():
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._within("thinking", empty)
                if not self._omits_thinking:
                    yield self._delta({"type": "thinking_delta", "thinking": event.text})
            case CallStart():
                yield from self.closed()
                call = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                yield from self._within("tool_use", call)
            case Arguments():
                yield self._delta({"type": "input_json_delta", "partial_json": event.text})
            case CallEnd():
                yield from self.closed()

    def closed(self) -> Iterator[MessageEvent]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _within(self, kind: str, empty: dict[str, Any]) -> Iterator[MessageEvent]:
        if self._open == kind:
            return
        yield from self.closed()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": empty}

    def _delta(self, delta: dict[str, Any]) -> MessageEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
