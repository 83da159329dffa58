"""``/v1/responses/compact``: a conversation, shortened to its messages and a summary of the rest.

What users, systems and developers wrote is kept word for word, and so are calls whose outputs are still to
come. The model summarizes what it said, thought and called, and what tools returned; the summary is an item
of the type ``compaction``.
"""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypedDict

import msgspec

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Generation
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import ApiError
from galley.protocols.openai.responses.answers import ENDPOINT, earlier_items, named_as_given
from galley.protocols.openai.responses.schemas import (
    InputItem,
    ResponseCompactRequest,
    ResponseCountRequest,
)
from galley.protocols.openai.responses.store import Responses, listed
from galley.protocols.openai.responses.summaries import content_of
from galley.protocols.openai.responses.usage import ResponseUsage, usage_of
from galley.tools.conversation import Conversation
from galley.tools.events import Text
from galley.types import SamplingParams

COMPACT: Final = ENDPOINT + "/compact"

_MOST_TOKENS: Final = 4096
_PART: Final = 4
"""A summary has at most ``_MOST_TOKENS`` tokens, or the context divided by ``_PART`` if that is less."""

_REQUEST: Final = (
    "Summarize our conversation so far, so that you can continue it from the summary and my messages "
    "alone. Keep facts, decisions, names, numbers, results of tools and what is still to be done. Write "
    "only the summary."
)


class CompactedResponse(TypedDict):
    """Answer of `POST /v1/responses/compact`: `output` is the input of the conversation's next request."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


async def compacted(
    served: ServedModel, parsed: ResponseCompactRequest, caller: Caller, store: Responses
) -> CompactedResponse:
    """Compact a conversation.

    Args:
        served: the model that writes the summary.
        parsed: the request.
        caller: the caller.
        store: holds the response whose conversation is compacted.

    Raises:
        GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
    """
    earlier = await earlier_items(parsed, caller, store)
    said, pending = _without_pending_calls([*earlier, *parsed.items()])
    given = ResponseCountRequest(input=said, instructions=parsed.instructions)
    with named_as_given(), opened(Call(served, COMPACT, caller)) as call:
        caller.keep_seconds = parsed.keep_seconds
        conversation = _with_request(given.as_conversation([]))
        call.check_early(0)
        most = min(_MOST_TOKENS, max(1, call.info.max_request_tokens // _PART))
        params = SamplingParams(max_tokens=most)
        # The request for a summary makes conversations alike that are not.
        generation = await converse(call, conversation, params, up_to_context=True, compared=False)
    try:
        summary = await _text_of(generation)
        used = usage_of(generation)
    finally:
        generation.close()
    if not summary.strip():
        raise ApiError(
            500,
            "The model wrote no summary of the conversation; try again, or continue without compaction",
            type="internal_error",
            code="empty_summary",
        )
    name = caller.request_id
    return {
        "id": f"resp_{name}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*_kept(said, name), _summary_item(summary, name), *listed(pending, name)],
        "usage": used,
    }


def _without_pending_calls(
    items: Sequence[InputItem],
) -> tuple[list[InputItem], list[InputItem]]:
    """Return the items other than calls whose outputs are still to come, and these calls.

    Their outputs come with the conversation's next request, which is refused if the calls are gone.
    """
    answered = {one.call_id for one in items if one.type == "function_call_output"}
    pending = [one.type == "function_call" and one.call_id not in answered for one in items]
    return (
        [one for one, waits in zip(items, pending, strict=True) if not waits],
        [one for one, waits in zip(items, pending, strict=True) if waits],
    )


def _with_request(conversation: Conversation) -> Conversation:
    """Return the conversation with the request for a summary, as part of a user's last message."""
    messages = list(conversation.messages)
    if messages and messages[-1]["role"] == "user":
        last = messages.pop()
        messages.append({**last, "content": f"{last['content']}\n\n{_REQUEST}"})
    else:
        messages.append({"role": "user", "content": _REQUEST})
    return msgspec.structs.replace(conversation, messages=messages)


async def _text_of(generation: Generation) -> str:
    """Return the text that the model writes, without its thinking."""
    said: list[str] = []
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            said += [event.text for event in piece.events if isinstance(event, Text)]
    return "".join(said)


def _kept(items: Sequence[InputItem], name: str) -> list[dict[str, Any]]:
    messages = [one for one in items if one.type == "message" and one.role != "assistant"]
    return listed(messages, name)


def _summary_item(summary: str, name: str) -> dict[str, Any]:
    return {"id": f"cmp_{name}", "type": "compaction", "encrypted_content": content_of(summary)}
