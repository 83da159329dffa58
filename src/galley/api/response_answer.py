"""OpenAI's Responses API: answers, whole and as events."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, Literal, NotRequired, Self, TypedDict

import msgspec

from galley.api.errors import to_api_error
from galley.api.response_request import InputItem, ResponseRequest
from galley.api.response_store import ResponseStore, StoredResponse
from galley.api.responses import ReceiptFields, told_receipt
from galley.errors import RequestError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation
from galley.gateway.served import ServedModel
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text

ENDPOINT: Final = "/v1/responses"

Status = Literal["in_progress", "completed", "incomplete"]

_NAMES: Final = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}
"""Fields as errors of the core name them -> as this protocol does."""


class InputDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class OutputDetails(TypedDict):
    """What the generated tokens were."""

    reasoning_tokens: int


class ResponseUsage(ReceiptFields):
    """Tokens of one request, and its receipt."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """The answer to one request; ``output`` has items of the types reasoning, message, function_call."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class ResponseEvent(TypedDict):
    """An event of a stream; which further fields it has follows from its type."""

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
    """The answer to one request, on its way; ask for it whole or in events, once."""

    def __init__(
        self,
        call: Call,
        asked: ResponseRequest,
        generation: Generation,
        earlier: list[InputItem],
        store: ResponseStore,
    ) -> None:
        """Made by :meth:`start`."""
        self._call = call
        self._asked = asked
        self._generation = generation
        self._earlier = earlier
        self._store = store
        self._stored = store.is_on and asked.store is not False
        self._created = int(time.time())
        self._items = _Items(call.caller.request_id)

    @classmethod
    async def start(
        cls, served: ServedModel, asked: ResponseRequest, caller: Caller, store: ResponseStore
    ) -> Self:
        """Hand the request to the engine; ``asked.stream`` is not looked at.

        Args:
            store: has what the request goes on from, and gets the answer.

        Raises:
            GalleyError: as ``errors.to_api_error`` tells clients.
        """
        if asked.store and not store.is_on:
            raise RequestError(
                "store: this server stores no responses (--stored-responses); only false is supported",
                param="store",
            )
        earlier: list[InputItem] = []
        if asked.previous_response_id is not None:
            previous = store.previous(caller.tenant.name, asked.previous_response_id)
            # It may be megabytes, and others wait meanwhile.
            earlier = await asyncio.to_thread(previous.conversation)
        with _named_as_given(), opened(Call(served, ENDPOINT, caller)) as call:
            params, conversation = asked.sampling(), asked.as_conversation(earlier)
            call.check_early(0)
            generation = await converse(
                call, conversation, params, constrained_by=asked.constrained_by
            )
        return cls(call, asked, generation, earlier, store)

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> ResponseObject:
        """The complete answer. Raises EngineError or Draining if there is none."""
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
        """The streamed answer, in the documented order. Raises as :meth:`whole`."""
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
                for event in piece.events:
                    for made in self._items.of(event):
                        yield numbered(made)
                finish = piece.finish or finish
        for made in self._items.ended(cut=finish == "length"):
            yield numbered(made)
        response = await self._complete(finish)
        yield numbered({"type": f"response.{response['status']}", "response": response})

    async def _complete(self, finish: Finish | None) -> ResponseObject:
        """The whole answer, and a copy of it in the store."""
        response = self._response(finish)
        if self._stored:
            made = await asyncio.to_thread(
                StoredResponse.of, response, self._earlier, self._asked.input
            )
            kept = self._store.keep(self._call.caller.tenant.name, response["id"], made)
            response["store"] = self._stored = kept
        return response

    def _response(self, finish: Finish | None) -> ResponseObject:
        asked = self._asked
        status: Status = "completed"
        if finish is None:
            status = "in_progress"
        elif finish == "length":
            status = "incomplete"
        return {
            "id": f"resp_{self._call.caller.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if finish == "length" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._call.model,
            "output": self._items.kept if finish is not None else [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": _told(asked.reasoning) or {"effort": None, "summary": None},
            "store": self._stored,
            "temperature": asked.temperature,
            "text": {"format": (_told(asked.text) or {}).get("format") or {"type": "text"}},
            "tool_choice": _told(asked.tool_choice) or "auto",
            "tools": _told(asked.tools) or [],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None if finish is None else self._usage(),
            "user": asked.user,
        }

    def _usage(self) -> ResponseUsage:
        counts = self._generation.usage()
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.generated,
            "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
            "total_tokens": counts.prompt + counts.generated,
            **told_receipt(self._generation.receipt),
        }


class _Items:
    """Output items one after another: each begins, grows and is done before the next.

    Attributes:
        done: those that are, calls that came out broken among them.
    """

    def __init__(self, request_id: str) -> None:
        self.done: list[dict[str, Any]] = []
        self._request_id = request_id
        self._item: dict[str, Any] | None = None
        self._text: list[str] = []

    @property
    def kept(self) -> list[dict[str, Any]]:
        """Items of the complete answer: a broken call is none; its text is in the message behind it."""
        return [
            item
            for item in self.done
            if item["type"] != "function_call" or item["status"] == "completed"
        ]

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Text():
                yield from self._within("message")
                self._text.append(event.text)
                if event.warning is not None and self._item is not None:
                    self._item["warning"] = event.warning
                yield self._at(
                    "response.output_text.delta", content_index=0, delta=event.text, logprobs=[]
                )
            case Reasoning():
                yield from self._within("reasoning")
                self._text.append(event.text)
                yield self._at("response.reasoning_text.delta", content_index=0, delta=event.text)
            case CallStart():
                yield from self.ended()
                yield from self._begun(
                    "function_call", call_id=event.id, name=event.name, arguments=""
                )
            case Arguments():
                self._text.append(event.text)
                yield self._at("response.function_call_arguments.delta", delta=event.text)
            case CallEnd():
                yield from self.ended(cut=event.broken)

    def ended(self, *, cut: bool = False) -> Iterator[dict[str, Any]]:
        """The item at hand is complete; ``cut``: it ends before it is."""
        item = self._item
        if item is None:
            return
        text = "".join(self._text)
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._at(
                "response.function_call_arguments.done", arguments=text, name=item["name"]
            )
        else:
            said = item["type"] == "message"
            kind = "response.output_text.done" if said else "response.reasoning_text.done"
            extra: dict[str, Any] = {"logprobs": []} if said else {}
            yield self._at(kind, content_index=0, text=text, **extra)
            part = _part(item["type"], text)
            item["content"] = [part]
            yield self._at("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.done), "item": item}
        self.done.append(item)
        self._item, self._text = None, []

    def _within(self, kind: str) -> Iterator[dict[str, Any]]:
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self.ended()
        fields: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        yield from self._begun(kind, content=[], **fields)
        yield self._at("response.content_part.added", content_index=0, part=_part(kind, ""))

    def _begun(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        name = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        made = f"{name}_{self._request_id}-{len(self.done)}"
        self._item = {"id": made, "type": kind, "status": "in_progress", **fields}
        added = {"type": "response.output_item.added", "output_index": len(self.done)}
        yield {**added, "item": dict(self._item)}

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._item is not None
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.done), **fields}


def _told(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def error_event(error: Exception) -> dict[str, Any]:
    """The last event of a stream that cannot go on."""
    told = to_api_error(error)
    return {"type": "error", "code": told.code, "message": str(told), "param": told.param}


@contextmanager
def _named_as_given() -> Iterator[None]:
    """Errors name the fields of this protocol."""
    try:
        yield
    except RequestError as error:
        name = _NAMES.get(error.param or "")
        if name is None:
            raise
        message = str(error).replace(error.param or "", name)
        raise RequestError(message, param=name, code=error.code) from None
