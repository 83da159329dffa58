"""The chat side of ``galley.LLM``: conversations with tools, and answers split into their parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from galley.errors import RequestError
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.tools.conversation import Conversation, Tool, read_arguments
from galley.tools.formats import ChatFormat
from galley.tools.parser import Parser
from galley.tools.prepare import check_tools, markers_of, prepared, variables_of
from galley.tools.volatile import settle
from galley.types import SamplingParams


class ChatPrompt(NamedTuple):
    """A conversation that is ready for the engine.

    Attributes:
        params: sampling parameters, including the grammar that the answer needs; not checked.
        new_parser: makes the parser that splits an answer; returns None if there is nothing to
            parse.
    """

    ids: list[int]
    params: SamplingParams
    new_parser: Callable[[], Parser | None]


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that ``LLM.chat`` accepts in addition to messages, named as in OpenAI's API.

    Attributes:
        tools: functions that the model may call, ``{"type": "function", "function": {"name": ...,
            "parameters": ...}}``.
        tool_choice: "auto", "none", "required", or the name of the tool that must be called.
        parallel_tool_calls: whether an answer may have several calls.
        chat_template_kwargs: variables of the chat template.
        reasoning_effort: how much to think, where the template supports it; "none": not at all.
        max_thinking_tokens: limit of thinking in tokens, after which thinking is ended.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: Mapping[str, Any] = {}
    reasoning_effort: str | None = None
    max_thinking_tokens: int | None = None

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Conversation:
        """Combine messages with these options.

        Raises:
            RequestError: a tool, a call or the choice is invalid.
        """
        named = self.tool_choice not in ("auto", "none", "required")
        return Conversation(
            messages=[_with_dictionaries(message) for message in messages],
            tools=tuple(_tool(tool, index) for index, tool in enumerate(self.tools)),
            choice="auto" if named else self.tool_choice,  # type: ignore[arg-type]  # one of three
            named=self.tool_choice if named else None,
            parallel=self.parallel_tool_calls,
            variables=dict(self.chat_template_kwargs),
            effort=self.reasoning_effort,
            max_thinking_tokens=self.max_thinking_tokens,
        )


def as_options(options: Mapping[str, Any]) -> ChatOptions:
    """Convert keyword arguments to options.

    Raises:
        RequestError: an option is unknown or of a wrong type; the error names it.
    """
    unknown = next((name for name in options if name not in ChatOptions.__struct_fields__), None)
    if unknown is not None:
        raise RequestError(f"chat has no parameter {unknown!r}", param=unknown)
    try:
        return msgspec.convert(dict(options), ChatOptions, strict=True)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].partition("`")[0].partition("[")[0]
        raise RequestError(f"{name}: {error}", param=name) from None


def chat_prompt(
    conversation: Conversation,
    params: SamplingParams,
    template: ChatTemplate,
    format: ChatFormat,
    tokenizer: Tokenizer,
) -> ChatPrompt:
    """Render a conversation to the model's input.

    Raises:
        RequestError: the template refuses the conversation, or the model does not support a
            request.
    """
    check_tools(conversation, format)
    ids = template.encode(
        tokenizer,
        settle(conversation.messages, format.volatile_lines),
        tools=[tool.as_templates_expect() for tool in conversation.offered],
        variables=variables_of(conversation, format),
        continue_last=conversation.continues,
    )
    markers = tokenizer.encode_all(markers_of(conversation, format), add_special_tokens=False)
    params, new_parser = prepared(conversation, format, tokenizer, ids, params, markers)
    return ChatPrompt(ids, params, new_parser)


def _tool(tool: Mapping[str, Any], index: int) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(
            f'tools[{index}]: expected {{"type": "function", "function": {{"name": ...}}}}',
            param=f"tools[{index}]",
        )
    return Tool(
        name=function["name"],
        description=function.get("description"),
        parameters=function.get("parameters"),
        strict=bool(function.get("strict")),
        field=f"tools[{index}].function.parameters",
    )


def _with_dictionaries(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with the arguments of its calls parsed, where they are JSON text."""
    message = dict(message)
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            function = dict(call["function"])
            if isinstance(function["arguments"], str):
                function["arguments"] = read_arguments(function["arguments"])
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(
                "messages: a call must have a function with arguments, a dictionary or text",
                param="messages",
            ) from error
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls} if calls else message
