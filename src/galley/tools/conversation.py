"""A conversation with tools, as every protocol hands it to the models."""

import re
from typing import Any, Final, Literal

import msgspec

from galley.errors import RequestError

ToolChoice = Literal["auto", "none", "required"]

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
"""What a tool may be called: OpenAI's letters, and those that separate the names of servers and tools."""


_SYSTEM_ROLES: Final = ("system", "developer")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        parameters: a JSON schema of the arguments, which are an object; None if there are none.
        strict: calls satisfy the schema, whatever ``choice`` the conversation has.
        field: of the request, that has the schema; errors name it.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    field: str = "tools"

    def as_templates_expect(self) -> dict[str, Any]:
        """The tool as chat templates know it, which is OpenAI's form."""
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
    """Messages to be answered, and what the answer may be. Validated at construction.

    Attributes:
        messages: as chat templates know them. ``role`` is system, user, assistant or tool; ``content`` is
            text. A call in an assistant's ``tool_calls`` is ``{"type": "function", "id": ...,
            "function": {"name": ..., "arguments": {...}}}``, with a dictionary of arguments, or with their
            text if that is no JSON object; a message of the role tool has a ``tool_call_id``. An
            assistant's thinking is its ``reasoning_content``.
        tools: that the model may call.
        choice: "auto": the model calls tools or does not; "none": it is not told of any; "required": it
            calls at least one.
        named: the only tool that may be called, and must be.
        parallel: the answer may have several calls; else it ends with the first.
        variables: further variables of the chat template, such as ``enable_thinking``.
        continues: the last message is the assistant's, and the answer goes on with it.
        effort: how much the model is to think; "none" is not at all. None: as the template has it.
        effort_is_hint: a template by which it cannot be told is no error.
        max_thinking_tokens: so many tokens of thinking are followed by its end. None: no limit.

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
                "messages: the last one has calls of tools, which their answers must follow",
                param="messages",
            )
        names = [tool.name for tool in self.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"two tools have the name {twice!r}", param="tools")
        if self.must_call and not self.tools:
            raise RequestError("tool_choice asks for a call, but there are no tools", param="tools")
        if self.named is not None and self.named not in names:
            raise RequestError(
                f"tool_choice names {self.named!r}, which is none of the tools", param="tool_choice"
            )

    def headed_by(self, system_prompt: str) -> "Conversation":
        """The same with a system message at its head, if it has none and ``system_prompt`` is not empty."""
        if not system_prompt or any(m.get("role") in _SYSTEM_ROLES for m in self.messages):
            return self
        head = {"role": "system", "content": system_prompt}
        return msgspec.structs.replace(self, messages=[head, *self.messages])

    @property
    def must_call(self) -> bool:
        """Whether the answer is a call."""
        return self.named is not None or self.choice == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        if self.named is not None:
            return tuple(tool for tool in self.tools if tool.name == self.named)
        return () if self.choice == "none" else self.tools


def read_arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments: the object that is written, or the text itself if that is none.

    An answer that was cut off within a call comes back so, with every later turn.
    """
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text
