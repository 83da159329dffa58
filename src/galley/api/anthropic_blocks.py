"""Messages of Anthropic's API, block by block, and what they are to the models."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.api.messages import MAX_PARTS, TOOL_NAME_PATTERN, Strict
from galley.errors import RequestError


class CacheControl(Strict, frozen=True, kw_only=True):
    """Taken and not used."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[str, Meta(max_length=64)] | None = None


class DirectCaller(Strict, frozen=True, kw_only=True):
    """Who called a tool: the model itself."""

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
    """Another server's thinking, sent back; only that one can read it, so it is left out."""

    data: str
    cache_control: CacheControl | None = None


class ToolUseBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """An assistant's call of a tool."""

    id: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    input: Annotated[
        dict[str, Any] | str,
        Meta(description="Text, if that is no JSON, is given to the chat template as it is."),
    ]
    cache_control: CacheControl | None = None
    caller: DirectCaller | None = None
    toolset_name: None = None


class ToolResultBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    tool_use_id: Annotated[str, Meta(max_length=256)]
    content: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] | None = None
    is_error: Annotated[
        bool | None, Meta(description="Taken and not used: the content says it.")
    ] = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


Block: TypeAlias = (
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
)

_OF_ROLE: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
}


class AnthropicMessage(Strict, frozen=True, kw_only=True):
    """One turn of a conversation. One of the role `system` may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]

    def __post_init__(self) -> None:
        for block in self.content if isinstance(self.content, list) else ():
            if not isinstance(block, _OF_ROLE[self.role]):
                raise RequestError(
                    f"content: a message of the role {self.role} has no {_type_of(block)}",
                    param="content",
                )

    def plain(self) -> list[dict[str, Any]]:
        """The message as Conversation has it, behind one for each result of a tool."""
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
        if texts or self.role == "assistant" or not plain:
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


def text_of(content: str | list[TextBlock], between: str = "") -> str:
    """The content as one text."""
    return content if isinstance(content, str) else between.join(block.text for block in content)


def _type_of(block: Block) -> str:
    return str(type(block).__struct_config__.tag)
