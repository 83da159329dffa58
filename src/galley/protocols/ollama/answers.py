"""Ollama's API: answers, whole and line by line, and errors."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, NotRequired, Self, TypedDict

import msgspec

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import naming_message, renamed
from galley.protocols.common.generated import whole_answer
from galley.protocols.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from galley.tools.events import Arguments, CallEnd, CallStart, Reasoning, Text

PREFIX: Final = "/api/"
CHAT: Final = f"{PREFIX}chat"
GENERATE: Final = f"{PREFIX}generate"

_BILLION: Final = 10**9
_NAMES: Final = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "penalty_window": "options.repeat_last_n",
    "reasoning_effort": "think",
    **{
        name: f"options.{name}"
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "seed", "stop"),
            *("presence_penalty", "frequency_penalty"),
        )
    },
}
"""Field names in the core's errors -> this protocol's names."""

named_as_given: Final = partial(renamed, _NAMES)
"""A context in which errors name the fields of this protocol."""


class OllamaError(TypedDict):
    """Body of every answer with a status other than 2xx."""

    error: str


class OllamaCalled(TypedDict):
    """The function of a call, and its arguments."""

    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    """A tool call."""

    function: OllamaCalled


class OllamaAnswerMessage(TypedDict):
    """The assistant's message, or a piece of it."""

    role: str
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaAnswer(TypedDict):
    """An answer, or a piece of it; the last piece has token counts, and durations in nanoseconds.

    ``warnings`` report the parts of the request that were not honored.
    """

    model: str
    created_at: str
    done: bool
    message: NotRequired[OllamaAnswerMessage]
    response: NotRequired[str]
    thinking: NotRequired[str]
    done_reason: NotRequired[str]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    warnings: NotRequired[list[str]]


def envelope(error: Exception) -> OllamaError:
    """Return the error body in Ollama's format."""
    return {"error": naming_message(error)}


def without_prompt(
    parsed: OllamaChatRequest | OllamaGenerateRequest,
    reason: Literal["load", "unload"],
    warnings: list[str],
) -> OllamaAnswer:
    """Return the answer to a request that only loads or unloads the model."""
    chat = isinstance(parsed, OllamaChatRequest)
    said: dict[str, Any] = (
        {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    )
    answer: OllamaAnswer = {
        "model": parsed.model,
        "created_at": _now(),
        **said,  # type: ignore[typeddict-item]
        "done": True,
        "done_reason": reason,
    }
    if warnings:
        answer["warnings"] = warnings
    return answer


class OllamaGeneration:
    """The answer to one request in progress; read it once, either whole or as lines."""

    def __init__(
        self,
        call: Call,
        parsed: OllamaChatRequest | OllamaGenerateRequest,
        generation: Generation,
    ) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._call = call
        self._name = parsed.model
        self._warnings = parsed.warnings(call.info.require_text().max_model_len)
        self._generation = generation
        self._chat = isinstance(parsed, OllamaChatRequest)

    @classmethod
    async def start(
        cls, served: ServedModel, parsed: OllamaChatRequest | OllamaGenerateRequest, caller: Caller
    ) -> Self:
        """Submit the request to the engine; ``parsed.stream`` is ignored.

        Raises:
            GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
        """
        endpoint = CHAT if isinstance(parsed, OllamaChatRequest) else GENERATE
        with named_as_given(), opened(Call(served, endpoint, caller)) as call:
            params = parsed.sampling()
            call.check_early(0)
            if isinstance(parsed, OllamaGenerateRequest) and parsed.raw:
                params = await call.text.check_grammar(params, parsed.constrained_by)
                prompts = await call.text.encode([parsed.prompt or ""])
                generation = await Generation.submit(
                    call, params, prompts, priority=0, cache_salt=None, prompt_param="prompt"
                )
            else:
                generation = await converse(
                    call, parsed.conversation(), params, constrained_by=parsed.constrained_by
                )
        return cls(call, parsed, generation)

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> OllamaAnswer:
        """Return the complete answer.

        Raises:
            EngineError: the engine failed.
            Draining: the server is shutting down.
        """
        answer, finish = await whole_answer(self._generation)
        calls = [_called(call.name, call.arguments) for call in answer.calls]
        return self._last(self._piece(answer.text, answer.reasoning, calls), finish)

    async def events(self) -> AsyncGenerator[OllamaAnswer, None]:
        """Yield the answer in pieces, with calls once complete. Raises as :meth:`whole`."""
        calls: dict[int, tuple[str, list[str]]] = {}
        finish: Finish | None = None
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                for event in piece.events:
                    match event:
                        case Text():
                            yield self._piece(event.text)
                        case Reasoning():
                            yield self._piece("", event.text)
                        case CallStart():
                            calls[event.index] = (event.name, [])
                        case Arguments():
                            calls[event.index][1].append(event.text)
                        case CallEnd(broken=False):
                            name, arguments = calls.pop(event.index)
                            yield self._piece("", "", [_called(name, "".join(arguments))])
                finish = piece.finish or finish
        yield self._last(self._piece(""), finish)

    def _piece(
        self, text: str, thinking: str = "", calls: list[OllamaCall] | None = None
    ) -> OllamaAnswer:
        answer: OllamaAnswer = {"model": self._name, "created_at": _now(), "done": False}
        if not self._chat:
            answer["response"] = text
            if thinking:
                answer["thinking"] = thinking
            return answer
        said: OllamaAnswerMessage = {"role": "assistant", "content": text}
        if thinking:
            said["thinking"] = thinking
        if calls:
            said["tool_calls"] = calls
        answer["message"] = said
        return answer

    def _last(self, answer: OllamaAnswer, finish: Finish | None) -> OllamaAnswer:
        counts, receipt = self._generation.usage(), self._generation.receipt
        total = receipt.queue_seconds + receipt.prefill_seconds + receipt.decode_seconds
        answer["done"] = True
        answer["done_reason"] = "length" if finish == "length" else "stop"
        answer["total_duration"] = int(_BILLION * total)
        answer["load_duration"] = 0
        answer["prompt_eval_count"] = counts.prompt
        prefill, decode = receipt.prefill_seconds, receipt.decode_seconds
        if not decode and counts.generated:
            # The first token comes with the prompt's last: it gets one token's share of that time.
            decode = prefill / (counts.prompt + 1)
            prefill -= decode
        answer["prompt_eval_duration"] = int(_BILLION * prefill)
        answer["eval_count"] = counts.generated
        answer["eval_duration"] = int(_BILLION * decode)
        if self._warnings:
            answer["warnings"] = self._warnings
        return answer


def _called(name: str, arguments: str) -> OllamaCall:
    return {"function": {"name": name, "arguments": msgspec.json.decode(arguments)}}


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
