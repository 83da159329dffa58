"""A conversation with tools, as every protocol passes it to the models."""

import re
from typing import Any, Final, Literal

import msgspec

from galley.errors import RequestError

ToolChoice = Literal["auto", "none", "required"]

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
"""Valid tool names: OpenAI's characters, and separators between the names of servers and tools."""


_SYSTEM_ROLES: Final = ("system", "developer")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of the arguments, which are an object; None if there are none.
        strict: whether calls must satisfy the schema, whatever ``choice`` the conversation has.
        field: the request's field with the schema; errors name it.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    field: str = "tools"

    def as_templates_expect(self) -> dict[str, Any]:
        """Return the tool in the form of chat templates, which is OpenAI's."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        """``parameters``, or the schema of no arguments."""
        return self.parameters or {"type": "object", "properties": {}}


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to be answered, and constraints on the answer. Validated at construction.

    Attributes:
        messages: messages in the form of chat templates. ``role`` is system, user, assistant or
            tool; ``content`` is text. A call in an assistant's ``tool_calls`` is ``{"type":
            "function", "id": ..., "function": {"name": ..., "arguments": {...}}}``, with a
            dictionary of arguments, or with their text if that is not a JSON object; a message of
            the role tool has a ``tool_call_id``. An assistant's thinking is its
            ``reasoning_content``.
        tools: tools that the model may call.
        choice: "auto": the model decides whether to call tools; "none": no tools are passed to the
            model; "required": it calls at least one.
        named: the only tool that may be called, and must be.
        parallel: whether the answer may have several calls; otherwise it ends after the first.
        variables: further variables of the chat template, such as ``enable_thinking``.
        continues: whether the last message is the assistant's, and the answer continues it.
        effort: how much the model is to think; "none" is not at all. None: the template's default.
        effort_is_hint: whether to ignore ``effort`` if the template has no variable for it;
            otherwise that is an error.
        max_thinking_tokens: limit of thinking in tokens, after which it is ended. None: no limit.

    Raises:
        RequestError: fields contradict each other; ``param`` names one.
    """

    messages: list[dict[str, Any]]
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    named: str | None = None
    parallel: bool = True
    variables: dict[str, Any] = {}
    continues: bool = False
    effort: str | None = None
    effort_is_hint: bool = False
    max_thinking_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.continues and self.messages[-1].get("tool_calls"):
            raise RequestError(
                "messages: the last message has tool calls; messages with their results must follow it",
                param="messages",
            )
        names = [tool.name for tool in self.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"two tools have the name {twice!r}", param="tools")
        if self.must_call and not self.tools:
            raise RequestError("tool_choice requires a call, but there are no tools", param="tools")
        if self.named is not None and self.named not in names:
            raise RequestError(
                f"tool_choice is {self.named!r}, which is not one of the tools", param="tool_choice"
            )

    def with_system_prompt(self, system_prompt: str) -> "Conversation":
        """Prepend a system message, unless there is one already or ``system_prompt`` is empty."""
        if not system_prompt or any(m.get("role") in _SYSTEM_ROLES for m in self.messages):
            return self
        head = {"role": "system", "content": system_prompt}
        return msgspec.structs.replace(self, messages=[head, *self.messages])

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.named is not None or self.choice == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that are passed to the model."""
        if self.named is not None:
            return tuple(tool for tool in self.tools if tool.name == self.named)
        return () if self.choice == "none" else self.tools


def read_arguments(text: str) -> dict[str, Any] | str:
    """Parse a call's arguments; return the text itself if it is not a JSON object.

    An answer that was cut off within a call is sent back as such text with every later turn.
    """
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text
