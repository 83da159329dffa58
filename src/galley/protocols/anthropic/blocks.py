"""Messages of Anthropic's API, block by block, and their form for the models."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import MAX_PARTS, TOOL_NAME_PATTERN, Strict


class CacheControl(Strict, frozen=True, kw_only=True):
    """Keeps the request's prefix in the cache for that time: 5 minutes by default."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="Accepted and ignored.")
    ] = None


class DirectCaller(Strict, frozen=True, kw_only=True):
    """The caller of a tool: the model itself."""

    type: Literal["direct"]


class TextBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Meta(max_length=0)] | None = None


class ThinkingBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """An assistant's thinking, sent back."""

    thinking: str
    signature: str = ""
    cache_control: CacheControl | None = None


class RedactedThinkingBlock(
    Strict, frozen=True, kw_only=True, tag_field="type", tag="redacted_thinking"
):
    """Another server's thinking, sent back; only that server can read it, so it is left out."""

    data: str
    cache_control: CacheControl | None = None


class ToolUseBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool call by the assistant."""

    id: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    input: Annotated[
        dict[str, Any] | str,
        Meta(description="Text that is not JSON is passed to the chat template unchanged."),
    ]
    cache_control: CacheControl | None = None
    caller: DirectCaller | None = None
    toolset_name: None = None


class FoundToolBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_reference"):
    """A tool that another tool found; the model sees its name, and has all tools anyway."""

    tool_name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str:
        """The text that the model sees."""
        return self.tool_name


class ChangedTool(Strict, frozen=True, kw_only=True):
    """One of the request's `tools`."""

    type: Literal["tool_reference"]
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]


class ToolAdditionBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_addition"):
    """Allows calls of a tool from this point on; the model sees the tool from the beginning."""

    tool: ChangedTool
    cache_control: CacheControl | None = None


class ToolRemovalBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_removal"):
    """Forbids calls of a tool from this point on."""

    tool: ChangedTool
    cache_control: CacheControl | None = None


class ToolResultBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: Annotated[str, Meta(max_length=256)]
    content: (
        str | Annotated[list[TextBlock | FoundToolBlock], Meta(max_length=MAX_PARTS)] | None
    ) = None
    is_error: Annotated[
        bool | None, Meta(description="Accepted and ignored: the content shows it.")
    ] = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


Block: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ToolAdditionBlock
    | ToolRemovalBlock
)

_OF_ROLE: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "system": (TextBlock, ToolAdditionBlock, ToolRemovalBlock),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
}


class AnthropicMessage(Strict, frozen=True, kw_only=True):
    """One turn of a conversation. A message with the role `system` may appear anywhere."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]
    clear_at: Annotated[
        Literal["next_user_message", "never"] | None,
        Meta(description="With the role `system`: whether a later user message removes it."),
    ] = None

    def __post_init__(self) -> None:
        if self.clear_at is not None and self.role != "system":
            raise RequestError("clear_at needs the role system", param="clear_at")
        for block in self.content if isinstance(self.content, list) else ():
            if not isinstance(block, _OF_ROLE[self.role]):
                raise RequestError(
                    f"content: a message of the role {self.role} cannot contain {_type_of(block)}",
                    param="content",
                )

    def plain(self) -> list[dict[str, Any]]:
        """Return the message in Conversation's form, after one message for each tool result."""
        blocks = [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content
        plain: list[dict[str, Any]] = [
            {
                "role": "tool",
                "content": text_of(block.content or ""),
                "tool_call_id": block.tool_use_id,
            }
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        texts = [block.text for block in blocks if isinstance(block, TextBlock)]
        changes = any(isinstance(b, ToolAdditionBlock | ToolRemovalBlock) for b in blocks)
        if texts or self.role == "assistant" or not (plain or changes):
            between = "\n\n" if self.role == "system" else ""
            message: dict[str, Any] = {"role": self.role, "content": between.join(texts)}
            thinking = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
            if any(thinking):
                message["reasoning_content"] = "".join(thinking)
            calls = [
                {
                    "type": "function",
                    "id": block.id,
                    "function": {"name": block.name, "arguments": block.input},
                }
                for block in blocks
                if isinstance(block, ToolUseBlock)
            ]
            if calls:
                message["tool_calls"] = calls
            plain.append(message)
        return plain


def kept_messages(messages: Sequence[AnthropicMessage]) -> Iterator[AnthropicMessage]:
    """Yield the messages except those that a later user message has cleared."""
    last = max((n for n, m in enumerate(messages) if m.role == "user"), default=-1)
    for index, message in enumerate(messages):
        if message.clear_at != "next_user_message" or index > last:
            yield message


def removed_tools(messages: Sequence[AnthropicMessage]) -> set[str]:
    """Return the names of the tools that may not be called after these messages."""
    removed: set[str] = set()
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, ToolRemovalBlock):
                removed.add(block.tool.name)
            elif isinstance(block, ToolAdditionBlock):
                removed.discard(block.tool.name)
    return removed


def text_of(content: str | Sequence[TextBlock | FoundToolBlock], between: str = "") -> str:
    """Return the content as one string."""
    return content if isinstance(content, str) else between.join(block.text for block in content)


def _type_of(block: Block) -> str:
    return str(type(block).__struct_config__.tag)
