"""Conversations to answers, whatever the protocol: the way from messages and tools to text and calls.

A protocol makes a :class:`galley.tools.conversation.Conversation` and SamplingParams of its request, calls
:func:`converse` and writes the ``events`` of each :class:`galley.gateway.generation.Piece` in its own form,
as they come. :func:`galley.tools.events.whole` makes one answer of all events of a choice.
"""

from functools import partial
from typing import Any, Final

from galley.errors import RequestError
from galley.gateway.call import Call
from galley.gateway.generation import Generation
from galley.gateway.served import Backend
from galley.text.tokenizer import Tokenizer
from galley.tools.conversation import Conversation
from galley.tools.formats import THINKING, ChatFormat
from galley.types import SamplingParams

_NOT_VARIABLES: Final = frozenset(("messages", "tools", "add_generation_prompt"))
_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables by which chat templates turn thinking on and off."""

_TAIL_TOKENS: Final = 32
"""At a prompt's end, among which thinking begins if the template begins it."""


async def converse(
    call: Call,
    conversation: Conversation,
    params: SamplingParams,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    constrained_by: str = "",
) -> Generation:
    """Hand a conversation to the engine.

    Args:
        call: opened for the request; the caller closes what is returned, and the call if this raises.
        params: how to generate; their grammar, if any, is not checked yet.
        priority, cache_salt: as the request has them.
        constrained_by: the request's field that has the grammar of ``params``.

    Raises:
        RequestError: the request cannot be honoured by this model.
        Unavailable: the queue is full, the tenant has no tokens left, or the engine is not ready.
        EngineFailed: the engine will not come back.
    """
    backend = call.backend
    params = await backend.text.check_grammar(params, constrained_by)
    prompt = await prompt_of(backend, conversation)
    new_parser = partial(
        backend.format.parser,
        conversation.offered,
        parallel=conversation.parallel,
        in_thinking=ends_in_thinking(prompt, backend.tokenizer, backend.format),
    )
    return Generation.submit(
        call,
        params,
        [prompt],
        priority=priority,
        cache_salt=cache_salt,
        prompt_param="messages",
        parser=new_parser,
    )


async def prompt_of(backend: Backend, conversation: Conversation) -> list[int]:
    """Token ids of the conversation, as the model's chat template writes it.

    Raises:
        RequestError: the request cannot be honoured by this model.
    """
    _check_tools(conversation, backend.format)
    return await backend.text.chat(
        conversation.messages,
        tools=[tool.as_templates_expect() for tool in conversation.offered],
        variables=variables_of(conversation, backend.format),
        context=backend.engine.info.max_request_tokens,
    )


def _check_tools(conversation: Conversation, format: ChatFormat) -> None:
    if not conversation.offered:
        return
    if not format.writes_tools:
        raise RequestError(
            "this model cannot be told of tools: its chat template does not write them",
            param="tools",
        )
    if format.calls is None:
        raise RequestError(
            "it is not known how this model writes calls of tools; the server's setting tool_parser "
            "names the form",
            param="tools",
        )
    if conversation.must_call:
        raise RequestError("tool_choice: only auto and none are supported", param="tool_choice")


def variables_of(conversation: Conversation, format: ChatFormat) -> dict[str, Any]:
    """Variables for the chat template.

    Raises:
        RequestError: the template does not have one, or has nothing by which ``effort`` could be told.
    """
    known = format.variables - _NOT_VARIABLES
    for name in conversation.variables:
        if name not in known:
            raise RequestError(
                f"the model's chat template has no variable {name!r}",
                param=f"chat_template_kwargs.{name}"[:200],
            )
    effort = conversation.effort
    if effort is None:
        return conversation.variables
    switch = next((name for name in _SWITCHES if name in known), None)
    if "reasoning_effort" in known:
        told: dict[str, Any] = {"reasoning_effort": effort}
    elif switch is not None:
        told = {switch: effort != "none"}
    elif effort == "none" and format.thinking is None:
        told = {}
    else:
        raise RequestError(
            "the model's chat template has no reasoning_effort, and nothing to turn thinking on or off",
            param="reasoning_effort",
        )
    return told | conversation.variables


def ends_in_thinking(prompt: list[int], tokenizer: Tokenizer, format: ChatFormat) -> bool:
    """Whether the model goes on with its thinking, which the template has begun."""
    if format.thinking is None:
        return False
    markers = THINKING[format.thinking]
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    return tail.rfind(markers.begin) > tail.rfind(markers.end)
