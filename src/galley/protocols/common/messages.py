"""Messages and tools of chat requests, field by field, and their form for the models."""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.tools.conversation import TOOL_NAME, Conversation, Tool, read_arguments

# Limits far above practical use, to bound the work that a hostile body can cause.
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 256
MAX_CALLS: Final = 128
MAX_TOOLS: Final = 512
MAX_TOOL_BYTES: Final = 64 * 1024
"""Size limit of one tool's JSON."""

TOOL_NAME_PATTERN: Final = rf"^{TOOL_NAME.pattern}\Z"


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request structs: no type conversions, no unknown fields."""


CacheControl: TypeAlias = Annotated[
    dict[str, Any] | None,
    Meta(
        description="Keeps the request's prefix in the cache for 5 minutes, or an hour with `ttl: 1h`. "
        "Prefixes are cached without it, too, but may be evicted sooner."
    ),
]
"""The mark with which clients of several providers end a prefix."""


class TextPart(Strict, frozen=True, kw_only=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class FunctionCall(Strict, frozen=True, kw_only=True):
    """``function`` of a call in an assistant's message."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    arguments: Annotated[
        str,
        Meta(description="A JSON object, as text. Other text is passed to the template unchanged."),
    ]

    def plain(self) -> dict[str, Any]:
        """Return the function in the form that chat templates expect."""
        return {"name": self.name, "arguments": read_arguments(self.arguments)}


class ToolCall(Strict, frozen=True, kw_only=True):
    """A call in an assistant's message, as it was in an answer."""

    id: Annotated[str, Meta(max_length=256)]
    function: FunctionCall
    type: Literal["function"] = "function"
    index: Annotated[int | None, Meta(description="Accepted and ignored.")] = None

    def plain(self) -> dict[str, Any]:
        """Return the call in the form that chat templates expect."""
        return {"type": "function", "id": self.id, "function": self.function.plain()}


class Message(Strict, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Meta(min_length=1, max_length=MAX_PARTS)] | None = None
    name: Annotated[str | None, Meta(description="Passed to the chat template.")] = None
    tool_calls: Annotated[
        Annotated[list[ToolCall], Meta(max_length=MAX_CALLS)] | None,
        Meta(description="With the role `assistant`."),
    ] = None
    tool_call_id: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="With the role `tool`: the call that the message answers."),
    ] = None
    reasoning_content: Annotated[
        str | None, Meta(description="An assistant's thinking; passed to the chat template.")
    ] = None
    warning: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    cache_control: CacheControl = None
    copilot_cache_control: CacheControl = None
    cot_id: Annotated[
        str | None,
        Meta(description="VS Code's id of an assistant's thinking. Accepted and ignored."),
    ] = None
    cot_summary: Annotated[str | None, Meta(description="As `cot_id`.")] = None
    refusal: None = None
    function_call: None = None
    audio: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None

    def __post_init__(self) -> None:
        of_assistant = self.role == "assistant"
        for field in ("tool_calls", "reasoning_content"):
            if getattr(self, field) and not of_assistant:
                raise RequestError(f"{field}: only allowed in an assistant's message", param=field)
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise RequestError(
                "tool_call_id is required with the role tool, and only allowed with it",
                param="tool_call_id",
            )
        if self.content is None and not self.tool_calls:
            raise RequestError(
                "content: required except in a message with tool_calls", param="content"
            )

    @property
    def text(self) -> str | None:
        """The content as one string."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    def plain(self) -> dict[str, Any]:
        """Return the message in the form of :class:`galley.tools.conversation.Conversation`.

        Chat templates do not know ``developer``, OpenAI's newer name for ``system``.
        """
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.text,
        }
        for field in ("name", "tool_call_id", "reasoning_content"):
            if getattr(self, field) is not None:
                message[field] = getattr(self, field)
        if self.tool_calls:
            message["tool_calls"] = [call.plain() for call in self.tool_calls]
        return message


Messages: TypeAlias = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class FunctionTool(Strict, frozen=True, kw_only=True):
    """``function`` of a tool."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments. Default: none.")
    ] = None
    strict: Annotated[bool | None, Meta(description="Whether calls must match `parameters`.")] = (
        None
    )


class ToolField(Strict, frozen=True, kw_only=True):
    """One of ``tools``."""

    type: Literal["function"]
    function: FunctionTool
    cache_control: CacheControl = None

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self))
        if size > MAX_TOOL_BYTES:
            raise RequestError(
                f"function: its JSON has {size} bytes, at most {MAX_TOOL_BYTES}", param="function"
            )


class NamedFunction(Strict, frozen=True, kw_only=True):
    """The tool that a ``tool_choice`` names."""

    name: str


class NamedTool(Strict, frozen=True, kw_only=True):
    """A ``tool_choice`` that names a tool."""

    type: Literal["function"]
    function: NamedFunction


Tools: TypeAlias = Annotated[list[ToolField], Meta(max_length=MAX_TOOLS)]
Choice: TypeAlias = Literal["none", "auto", "required"] | NamedTool


def conversation_of(
    messages: list[Message], tools: list[ToolField] | None, choice: Choice | None, **fields: Any
) -> Conversation:
    """Return the conversation that a request describes.

    Raises:
        RequestError: fields contradict each other.
    """
    named = choice.function.name if isinstance(choice, NamedTool) else None
    return Conversation(
        messages=[message.plain() for message in messages],
        tools=tuple(
            Tool(
                name=tool.function.name,
                description=tool.function.description,
                parameters=tool.function.parameters,
                strict=bool(tool.function.strict),
                field=f"tools[{index}].function.parameters",
            )
            for index, tool in enumerate(tools or ())
        ),
        choice=choice if isinstance(choice, str) else "auto",
        named=named,
        **fields,
    )
