"""OpenAI's Responses API: answers, whole and as events."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NotRequired, Self, TypedDict

import msgspec

from galley.errors import RequestError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import renamed, to_api_error
from galley.protocols.openai.responses.items import Items
from galley.protocols.openai.responses.lanes import Lane
from galley.protocols.openai.responses.schemas import (
    InputItem,
    ResponseCompactRequest,
    ResponseCountRequest,
    ResponseRequest,
)
from galley.protocols.openai.responses.shared import Begun, SharedResponses
from galley.protocols.openai.responses.store import Responses, StoredResponse, previous
from galley.protocols.openai.responses.tools import offered
from galley.protocols.openai.responses.usage import ResponseUsage, usage_of
from galley.settings.config import MOST_TIMEOUT

_SEED_BITS: Final = 63

_ending: set["asyncio.Task[None]"] = set()
"""Records of ended responses that are being removed."""

ENDPOINT: Final = "/v1/responses"

Status = Literal["in_progress", "completed", "incomplete"]

_NAMES: Final = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}
"""Field names in the core's errors -> this protocol's names."""

named_as_given: Final = partial(renamed, _NAMES)
"""A context in which errors name the fields of this protocol."""


class IncompleteDetails(TypedDict):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """The answer to one request; ``output`` has items of the types reasoning, message, function_call."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    presence_penalty: float
    frequency_penalty: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: Literal[0]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class InputTokenCount(TypedDict):
    """Answer of `POST /v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseEvent(TypedDict):
    """An event of a stream; its type determines its further fields."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseObject]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    item_id: NotRequired[str]
    item: NotRequired[dict[str, Any]]
    part: NotRequired[dict[str, Any]]
    delta: NotRequired[str]
    text: NotRequired[str]
    arguments: NotRequired[str]


class ResponseAnswer:
    """The answer to one request in progress; read it once, either whole or as events."""

    def __init__(
        self,
        call: Call,
        parsed: ResponseRequest,
        generation: Generation,
        earlier: list[InputItem],
        store: Responses,
        lane: Lane | None = None,
    ) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._sampling = parsed.sampling().resolved(call.info.require_text().defaults)
        self._call = call
        self._parsed = parsed
        self._generation = generation
        self._earlier = earlier
        self._store = store
        self._lane = lane
        self._stored = store.is_on and parsed.store is not False
        self._created = int(time.time())
        self._begun = ""
        names = {one.name: (one.namespace, one.function.name) for one in offered(parsed.tools)}
        self._items = Items(call.caller.request_id, names, streamed=bool(parsed.stream))

    @classmethod
    async def start(
        cls,
        served: ServedModel,
        parsed: ResponseRequest,
        caller: Caller,
        store: Responses,
        again: Begun | None = None,
        lane: Lane | None = None,
    ) -> Self:
        """Submit the request to the engine; ``parsed.stream`` is ignored.

        Args:
            served: the model.
            parsed: the request.
            caller: the caller.
            store: holds the response that the request continues, and receives the answer.
            again: the response that another server had begun to answer.
            lane: the lane of a WebSocket, which keeps the answer if the store does not.

        Raises:
            GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
        """
        if parsed.store and not store.is_on:
            raise RequestError(
                "store: this server stores no responses (--stored-responses); only false is supported",
                param="store",
            )
        earlier = await earlier_items(parsed, caller, store, lane)
        with named_as_given(), opened(Call(served, ENDPOINT, caller)) as call:
            caller.keep_seconds = parsed.keep_seconds
            params, conversation = parsed.sampling(), parsed.as_conversation(earlier)
            shared = isinstance(store, SharedResponses) and parsed.store is not False
            prepares = lane is not None and lane.only_prepares
            if shared and params.seed is None:
                # Another server may have to continue it.
                seed = secrets.randbits(_SEED_BITS) if again is None else again.seed
                params = msgspec.structs.replace(params, seed=seed)
            if prepares:
                params = msgspec.structs.replace(params, max_tokens=1)
                # An answer that the response cache has would leave the prompt uncomputed.
                caller.directives = replace(caller.directives, mode="off")
            call.check_early(0)
            generation = await converse(
                call,
                conversation,
                params,
                constrained_by=parsed.constrained_by,
                truncate=parsed.truncation == "auto",
            )
        answer = cls(call, parsed, generation, earlier, store, lane)
        if again is not None:
            answer._created = again.created
        elif shared and store.is_on and not prepares:
            await answer._begin(params.seed or 0)
        return answer

    async def _begin(self, seed: int) -> None:
        """Record what another server needs to answer the request if this one ends."""
        assert isinstance(self._store, SharedResponses)
        caller = self._call.caller
        shown: dict[str, Any] = msgspec.to_builtins(self._response(None))
        begun = Begun(request=self._parsed, seed=seed, created=self._created, shown=shown)
        left = min(MOST_TIMEOUT, caller.deadline - time.monotonic())
        self._begun = shown["id"]
        try:
            await self._store.begin(caller.tenant.name, shown["id"], begun, left)
        except BaseException:  # the client has hung up, and nobody else would close this
            self.close()
            raise

    def _ended(self) -> None:
        """Have no other server answer the request."""
        name, self._begun = self._begun, ""
        if name and isinstance(self._store, SharedResponses):
            ending = self._store.ended(self._call.caller.tenant.name, name)
            task = asyncio.create_task(ending)
            _ending.add(task)
            task.add_done_callback(_ending.discard)

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._generation.close()
        self._ended()

    async def whole(self) -> ResponseObject:
        """Return the complete answer.

        Raises:
            EngineError: the engine failed.
            Draining: the server is shutting down.
        """
        finish: Finish | None = None
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                for event in piece.events:
                    for _ in self._items.of(event):
                        pass
                finish = piece.finish or finish
        for _ in self._items.ended(cut=finish == "length"):
            pass
        return await self._complete(finish)

    async def events(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the answer's events, in the documented order. Raises as :meth:`whole`."""
        count = 0

        def numbered(fields: dict[str, Any]) -> ResponseEvent:
            nonlocal count
            count += 1
            return {**fields, "sequence_number": count - 1}  # type: ignore[typeddict-item]

        for kind in ("response.created", "response.in_progress"):
            yield numbered({"type": kind, "response": self._response(None)})
        finish: Finish | None = None
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                finish = piece.finish or finish
                if self._lane is not None and self._lane.only_prepares:
                    finish = finish and "stop"
                    continue
                for event in piece.events:
                    for made in self._items.of(event):
                        yield numbered(made)
        for made in self._items.ended(cut=finish == "length"):
            yield numbered(made)
        response = await self._complete(finish)
        yield numbered({"type": f"response.{response['status']}", "response": response})

    async def _complete(self, finish: Finish | None) -> ResponseObject:
        """Return the complete answer, after storing a copy of it where that is enabled."""
        response = self._response(finish)
        if self._stored or self._lane is not None:
            made = await asyncio.to_thread(
                StoredResponse.of, response, self._earlier, self._parsed.input
            )
            if self._stored:
                tenant = self._call.caller.tenant.name
                kept = await self._store.keep(tenant, response["id"], made)
                response["store"] = self._stored = kept
            if self._lane is not None and not self._stored:
                self._lane.keep(response["id"], made)
        return response

    def _response(self, finish: Finish | None) -> ResponseObject:
        parsed = self._parsed
        status: Status = "completed"
        if finish is None:
            status = "in_progress"
        elif finish == "length":
            status = "incomplete"
        return {
            "id": f"resp_{self._call.caller.request_id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if finish == "length" else None,
            "instructions": parsed.instructions,
            "max_output_tokens": parsed.max_output_tokens,
            "max_tool_calls": None,
            "metadata": parsed.metadata or {},
            "model": self._call.model,
            "output": self._items.done if finish is not None else [],
            "parallel_tool_calls": parsed.parallel_tool_calls is not False,
            "previous_response_id": parsed.previous_response_id,
            "prompt_cache_key": parsed.prompt_cache_key,
            "reasoning": _as_json(parsed.reasoning) or {"effort": None, "summary": None},
            "safety_identifier": parsed.safety_identifier,
            "service_tier": "default",
            "store": self._stored,
            "temperature": self._sampling.temperature or 0.0,
            "presence_penalty": self._sampling.presence_penalty or 0.0,
            "frequency_penalty": self._sampling.frequency_penalty or 0.0,
            "text": {"format": {"type": "text"}} | _given(parsed.text),
            "tool_choice": _as_json(parsed.tool_choice) or "auto",
            "tools": _as_json(parsed.tools) or [],
            "top_logprobs": 0,
            "top_p": 1.0 if self._sampling.top_p is None else self._sampling.top_p,
            "truncation": parsed.truncation or "disabled",
            "usage": None if finish is None else usage_of(self._generation),
            "user": parsed.user,
        }


async def earlier_items(
    parsed: ResponseCountRequest | ResponseCompactRequest,
    caller: Caller,
    store: Responses,
    lane: Lane | None = None,
) -> list[InputItem]:
    """Return the items of the conversation that a request continues, if it continues one.

    Raises:
        RequestError: the previous response is not stored.
    """
    name = parsed.previous_response_id
    if name is None:
        return []
    found = None if lane is None else lane.find(name)
    if found is None:
        found = await previous(store, caller.tenant.name, name)
    # It can be megabytes, and decoding it here would block other requests.
    return await asyncio.to_thread(found.conversation)


def _as_json(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _given(value: msgspec.Struct | None) -> dict[str, Any]:
    return {name: field for name, field in (_as_json(value) or {}).items() if field is not None}


def error_event(error: Exception) -> dict[str, Any]:
    """Return the last event of a stream that cannot continue."""
    api_error = to_api_error(error)
    return {
        "type": "error",
        "code": api_error.code,
        "message": str(api_error),
        "param": api_error.param,
    }
