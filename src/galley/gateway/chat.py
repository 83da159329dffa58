"""Answers conversations for all protocols: from messages and tools to text and tool calls.

A protocol converts its request to a :class:`galley.tools.conversation.Conversation` and SamplingParams,
calls :func:`converse` and writes the ``events`` of each :class:`galley.gateway.generation.Piece` in its
format as they arrive. :func:`galley.tools.events.whole` merges all events of a choice into one answer.
"""

import msgspec

from galley.gateway.call import Call
from galley.gateway.generation import Generation
from galley.gateway.served import Backend
from galley.service.turns import Share
from galley.tools.conversation import Conversation
from galley.tools.prepare import check_tools, markers_of, prepared, variables_of
from galley.tools.volatile import settle
from galley.types import SamplingParams


async def converse(
    call: Call,
    conversation: Conversation,
    params: SamplingParams,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    constrained_by: str = "",
    up_to_context: bool = False,
) -> Generation:
    """Submit a conversation to the engine.

    Args:
        call: opened for the request; the caller closes the returned Generation, or the call if this raises.
        conversation: the messages and tools.
        params: how to generate; a grammar in it is not checked yet.
        priority, cache_salt: the request's values.
        constrained_by: the request's field that has the grammar of ``params``.
        up_to_context: whether the context may end the answer before its ``max_tokens``.

    Raises:
        RequestError: the request cannot be honoured by this model.
        Unavailable: the queue is full, the tenant has no tokens left, or the engine is not ready.
        EngineFailed: the engine will not come back.
    """
    backend = call.backend
    if (derived := call.caller.derived) is not None:
        conversation = conversation.headed_by(derived.system_prompt)
    prompt = await prompt_of(backend, conversation, call.caller.share)
    if up_to_context and params.max_tokens is not None:
        limit = backend.engine.info.max_request_tokens
        own = call.caller.tenant.max_context
        room = (limit if own is None else min(limit, own)) - len(prompt)
        params = msgspec.structs.replace(params, max_tokens=max(1, min(params.max_tokens, room)))
    text = backend.require_text()
    markers = markers_of(conversation, text.format)
    params, new_parser = prepared(
        conversation,
        text.format,
        text.tokenizer,
        prompt,
        params,
        await call.text.encode(markers, add_special_tokens=False),
    )
    return Generation.submit(
        call,
        await call.text.check_grammar(params, constrained_by or "tool_choice"),
        [prompt],
        priority=priority,
        cache_salt=cache_salt,
        prompt_param="messages",
        parser=new_parser,
    )


async def prompt_of(backend: Backend, conversation: Conversation, share: Share) -> list[int]:
    """Return the token ids of a tenant's conversation, rendered by the model's chat template.

    Raises:
        RequestError: the request cannot be honoured by this model.
    """
    text = backend.require_text()
    check_tools(conversation, text.format)
    conversation = conversation.headed_by(text.system_prompt)
    return await text.pool.of(share).chat(
        settle(conversation.messages, text.format.volatile_lines),
        tools=[tool.as_templates_expect() for tool in conversation.offered],
        variables=variables_of(conversation, text.format),
        continue_last=conversation.continues,
        context=backend.engine.info.max_request_tokens,
    )
