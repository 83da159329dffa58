"""Answers conversations for all protocols: from messages and tools to text and tool calls.

A protocol converts its request to a :class:`galley.tools.conversation.Conversation` and SamplingParams,
calls :func:`converse` and writes the ``events`` of each :class:`galley.gateway.generation.Piece` in its
format as they arrive. :func:`galley.tools.events.whole` merges all events of a choice into one answer.
"""

from datetime import datetime
from typing import Final

import msgspec

from galley.cache.question import Question, question_of
from galley.errors import RequestError
from galley.gateway.backend import Backend
from galley.gateway.call import Call
from galley.gateway.generation import Generation
from galley.service.turns import Share
from galley.tools.conversation import Conversation
from galley.tools.prepare import check_tools, markers_of, prepared, variables_of
from galley.tools.volatile import settle
from galley.types import SamplingParams

_TOO_LONG: Final = "context_length_exceeded"
"""Code of errors about prompts that are too long, which text workers keep."""

_ANSWERS_SHARE: Final = 16
"""Where conversations are truncated, this part of the context is kept for an answer without a limit."""


async def converse(
    call: Call,
    conversation: Conversation,
    params: SamplingParams,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    constrained_by: str = "",
    up_to_context: bool = False,
    truncate: bool = False,
    compared: bool = True,
) -> Generation:
    """Submit a conversation to the engine.

    Args:
        call: opened for the request; the caller closes the returned Generation, or the call if this raises.
        conversation: the messages and tools.
        params: how to generate; a grammar in it is not checked yet.
        priority, cache_salt: the request's values.
        constrained_by: the request's field that has the grammar of ``params``.
        up_to_context: whether the context may end the answer before its ``max_tokens``.
        truncate: whether to leave out the conversation's first turns if it is too long.
        compared: whether the answer may be that of a conversation that means the same.

    Raises:
        RequestError: the request cannot be honored by this model.
        Unavailable: the queue is full, the tenant has no tokens left, or the engine is not ready.
        EngineFailed: the engine will not come back.
    """
    backend = call.backend
    if (derived := call.caller.derived) is not None:
        conversation = conversation.with_system_prompt(derived.system_prompt)
    question = _question(call, conversation, params) if compared else None
    limit, own = backend.engine.info.max_request_tokens, call.caller.tenant.max_context
    limit = limit if own is None else min(limit, own)
    if truncate:
        most = limit - (params.max_tokens or max(1, limit // _ANSWERS_SHARE))
        conversation, prompt = await last_turns(backend, conversation, call.caller.share, most)
    else:
        prompt = await prompt_of(backend, conversation, call.caller.share)
    if up_to_context and params.max_tokens is not None:
        room = limit - len(prompt)
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
    return await Generation.submit(
        call,
        await call.text.check_grammar(params, constrained_by or "tool_choice"),
        [prompt],
        priority=priority,
        cache_salt=cache_salt,
        prompt_param="messages",
        parser=new_parser,
        question=question,
    )


def _question(call: Call, conversation: Conversation, params: SamplingParams) -> Question | None:
    """Return what the response cache may compare by meaning; None if it is not used so."""
    if call.backend.responses is None or call.cache_mode != "semantic":
        return None
    derived, text = call.caller.derived, call.backend.require_text()
    around = (
        # Where the template writes the date, yesterday's answers were given to another prompt.
        text.format.day_of(datetime.now()),
        conversation.tools,
        conversation.choice,
        conversation.named,
        conversation.parallel,
        conversation.variables,
        conversation.effort,
        conversation.max_thinking_tokens,
        params.max_tokens,
        None if derived is None else derived.max_tokens,
        text.system_prompt,
    )
    most = call.served.settings.semantic_cache_turns
    return question_of(conversation.messages, around, most_turns=most)


async def last_turns(
    backend: Backend, conversation: Conversation, share: Share, most: int
) -> tuple[Conversation, list[int]]:
    """Return as many of the conversation's last turns as have at most ``most`` tokens, and their prompt.

    A turn begins with a user's message, so an answer of a tool never loses its call. The system
    messages at the beginning stay. Reads the prompt a logarithmic number of times.

    Raises:
        RequestError: as :func:`prompt_of` does, also where the last turn alone is too long.
    """
    messages = conversation.messages
    head = next((n for n, m in enumerate(messages) if m["role"] != "system"), len(messages))
    starts = [n for n in range(head + 1, len(messages)) if messages[n]["role"] == "user"]

    async def part_from(start: int) -> tuple[Conversation, list[int]]:
        shorter = [*messages[:head], *messages[start:]]
        part = msgspec.structs.replace(conversation, messages=shorter)
        return part, await prompt_of(backend, part, share)

    async def fitting(start: int) -> tuple[Conversation, list[int]] | None:
        try:
            part = await part_from(start)
        except RequestError as error:
            if error.code != _TOO_LONG:
                raise
            return None
        return part if len(part[1]) <= most else None

    whole = await fitting(head)
    low, high = 0, len(starts) - 1
    while whole is None and low < high:
        middle = (low + high) // 2
        if await fitting(starts[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return whole or await part_from(starts[low] if starts else head)


async def prompt_of(backend: Backend, conversation: Conversation, share: Share) -> list[int]:
    """Return the token ids of a tenant's conversation, rendered by the model's chat template.

    Raises:
        RequestError: the request cannot be honored by this model.
    """
    text = backend.require_text()
    check_tools(conversation, text.format)
    conversation = conversation.with_system_prompt(text.system_prompt)
    return await text.pool.of(share).chat(
        settle(conversation.messages, text.format.volatile_lines),
        tools=[tool.as_templates_expect() for tool in conversation.offered],
        variables=variables_of(conversation, text.format),
        continue_last=conversation.continues,
        context=backend.engine.info.max_request_tokens,
    )
