"""Validation of a conversation, and its conversion to inputs of the chat template and the engine."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from galley.errors import RequestError
from galley.text.tokenizer import Tokenizer
from galley.tools import harmony
from galley.tools.conversation import Conversation
from galley.tools.formats import HARMONY, THINKING, ChatFormat, control_tokens
from galley.tools.grammar import Thinking, grammar_of
from galley.tools.parser import Parser, ThinkingMarkers
from galley.types import SamplingParams, ThinkingBudget

_NOT_VARIABLES: Final = frozenset(("messages", "tools", "add_generation_prompt"))
_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables with which chat templates turn thinking on and off."""

_TAIL_TOKENS: Final = 32
"""Number of tokens at the end of a prompt to search for the start of thinking."""


def prepared(
    conversation: Conversation,
    format: ChatFormat,
    tokenizer: Tokenizer,
    prompt: list[int],
    params: SamplingParams,
    markers: Sequence[list[int]] = (),
) -> tuple[SamplingParams, Callable[[], Parser | None]]:
    """Prepare the sampling parameters of a conversation's answers, and a factory of their parsers.

    Args:
        conversation: a conversation that has passed :func:`check_tools`.
        format, tokenizer: the model's.
        prompt: the conversation's token ids.
        params: the request's parameters; the returned ones have a grammar, not checked, and a
            budget of thinking where these are needed.
        markers: token ids of each text of :func:`markers_of`.

    Raises:
        RequestError: the model does not support a request.
    """
    if conversation.continues and params.grammar is not None:
        raise RequestError(
            "response_format cannot apply to the continuation of an assistant message; leave out one of "
            "the two",
            param="response_format",
        )
    thinking = thinking_of(prompt, tokenizer, format)
    if conversation.continues and thinking == "possible":
        thinking = "over"
    params = msgspec.structs.replace(
        params,
        grammar=grammar_of(conversation, format, tokenizer, thinking, params.grammar),
        thinking=_thinking_budget(conversation, format, markers, thinking),
    )
    return params, partial(
        format.parser,
        conversation.offered,
        parallel=conversation.parallel,
        in_thinking=thinking == "begun",
        tokens=frozenset(control_tokens(tokenizer)),
        constrained=params.grammar is not None,
    )


def check_tools(conversation: Conversation, format: ChatFormat) -> None:
    """Raise RequestError if the conversation's tools cannot be passed to the model."""
    if not conversation.offered:
        return
    if not format.writes_tools:
        raise RequestError(
            "this model does not support tools: its chat template ignores them",
            param="tools",
        )
    if format.calls is None:
        raise RequestError(
            "the format of this model's tool calls is unknown; set tool_parser on the server",
            param="tools",
        )


def variables_of(conversation: Conversation, format: ChatFormat) -> dict[str, Any]:
    """Return the variables for the chat template.

    Raises:
        RequestError: the template does not have one, or has no variable for ``effort``.
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
        variables: dict[str, Any] = {"reasoning_effort": effort}
    elif switch is not None:
        variables = {switch: effort != "none"}
    elif conversation.effort_is_hint or (effort == "none" and format.thinking is None):
        variables = {}
    else:
        raise RequestError(
            "the model's chat template supports neither reasoning_effort nor turning thinking on or off",
            param="reasoning_effort",
        )
    return variables | conversation.variables


def thinking_of(prompt: list[int], tokenizer: Tokenizer, format: ChatFormat) -> Thinking:
    """Return whether the template has begun, or ended, the thinking of the answer after ``prompt``."""
    if format.thinking is None:
        return "over" if format.calls != HARMONY else "possible"
    begin, end = THINKING[format.thinking]
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    if tail.rfind(begin) > tail.rfind(end):
        return "begun"
    return "over" if tail.rstrip().endswith(end) else "possible"


def markers_of(conversation: Conversation, format: ChatFormat) -> ThinkingMarkers | tuple[()]:
    """Return the markers of thinking whose tokens a limit of thinking needs; empty without a limit.

    Raises:
        RequestError: there is a limit, but the model has no known markers of thinking.
    """
    if conversation.max_thinking_tokens is None:
        return ()
    if format.calls == HARMONY:
        return ThinkingMarkers(harmony.ANALYSIS, harmony.END)
    if format.thinking is not None:
        return THINKING[format.thinking]
    raise RequestError(
        "max_thinking_tokens: the format of this model's thinking is unknown; set reasoning_parser "
        "on the server",
        param="max_thinking_tokens",
    )


def _thinking_budget(
    conversation: Conversation,
    format: ChatFormat,
    markers: Sequence[list[int]],
    thinking: Thinking,
) -> ThinkingBudget | None:
    """Return the limit of thinking for the engine.

    Raises:
        RequestError: no single token ends the thinking.
    """
    most, texts = conversation.max_thinking_tokens, markers_of(conversation, format)
    if most is None or not texts:
        return None
    begin, end = markers
    if len(end) != 1:
        raise RequestError(
            f"max_thinking_tokens: this model ends its thinking with {texts.end!r}, which is not a "
            "single token",
            param="max_thinking_tokens",
        )
    return ThinkingBudget(most, end[0], tuple(begin), thinking == "begun")
