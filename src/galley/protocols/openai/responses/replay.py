"""Replay of a stored response as a stream: the same events, with each item's text in one piece."""

from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from galley.protocols.common.messages import Strict
from galley.protocols.openai.responses.answers import ResponseEvent
from galley.protocols.openai.responses.schemas import Include
from galley.protocols.openai.responses.store import StoredResponse


class RetrieveQuery(Strict, frozen=True, kw_only=True):
    """Query for a stored response: whether and how to stream it."""

    stream: bool = False
    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="With `stream`: only events after this sequence number."),
    ] = None
    include_obfuscation: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    include: Annotated[
        tuple[Include, ...], Meta(description="Accepted and ignored: everything is included.")
    ] = ()


async def replayed(
    response: StoredResponse, starting_after: int | None
) -> AsyncGenerator[ResponseEvent, None]:
    """Yield the stream events of a stored response.

    Args:
        response: the stored response.
        starting_after: sequence number after which events are sent; None: all are.
    """
    answer = msgspec.json.decode(response.answer)
    for number, event in enumerate(_events(answer)):
        if starting_after is None or number > starting_after:
            yield {**event, "sequence_number": number}  # type: ignore[typeddict-item]


def _events(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun: dict[str, Any] = {
        "status": "in_progress",
        "output": [],
        "usage": None,
        "completed_at": None,
    }
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": {**answer, **begun, "incomplete_details": None}}
    for index, item in enumerate(answer["output"]):
        yield from _item_events(item, index)
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Any] = (
        {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    )
    added = {**item, **empty, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if item["type"] == "function_call":
        written = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **at, "delta": written}
        done = {"arguments": written, "name": item["name"]}
        yield {"type": "response.function_call_arguments.done", **at, **done}
    for place, part in enumerate(item.get("content", ())):
        here = {**at, "content_index": place}
        kind = f"response.{part['type']}"
        more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        begun = {**part, "text": ""}
        yield {"type": "response.content_part.added", **here, "part": begun}
        yield {"type": f"{kind}.delta", **here, "delta": part["text"], **more}
        yield {"type": f"{kind}.done", **here, "text": part["text"], **more}
        yield {"type": "response.content_part.done", **here, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
