"""Anthropic's Messages API: what requests hold, field by field, and what they are to the models.

Fields that are taken and change nothing: ``metadata``, ``service_tier`` (one of ``auto`` and
``standard_only``: there is one), ``cache_control`` (prefixes are cached anyway) and the ``signature`` of
thinking that is sent back. Images, documents and tools that a server would run are refused by name.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.api.messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    TOOL_NAME_PATTERN,
    Strict,
)
from galley.api.structured_output import schema_grammar
from galley.errors import RequestError
from galley.tools.conversation import Conversation, Tool
from galley.types import SamplingParams

MAX_STOPS: Final = 2048

_EFFORTS: Final = {"max": "xhigh"}


class CacheControl(Strict, frozen=True, kw_only=True):
    """Taken and not used."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ThinkingBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """An assistant's thinking, sent back."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """An assistant's call of a tool."""

    id: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(Strict, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    tool_use_id: Annotated[str, Meta(max_length=256)]
    content: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] = ""
    is_error: Annotated[
        bool | None, Meta(description="Taken and not used: the content says it.")
    ] = None
    cache_control: CacheControl | None = None


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class AnthropicMessage(Strict, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]

    def __post_init__(self) -> None:
        of_assistant = self.role == "assistant"
        for block in self.content if isinstance(self.content, list) else ():
            fits = ToolResultBlock if not of_assistant else (ThinkingBlock, ToolUseBlock)
            if not isinstance(block, TextBlock) and not isinstance(block, fits):
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
                "content": _text(block.content),
                "tool_call_id": block.tool_use_id,
            }
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        texts = [block.text for block in blocks if isinstance(block, TextBlock)]
        if texts or self.role == "assistant" or not plain:
            message: dict[str, Any] = {"role": self.role, "content": "".join(texts)}
            thinking = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
            if thinking:
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


class AnthropicTool(Strict, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self))
        if size > MAX_TOOL_BYTES:
            raise RequestError(
                f"input_schema: the tool's JSON has {size} bytes, at most {MAX_TOOL_BYTES}",
                param="input_schema",
            )


class ToolChoice(Strict, frozen=True, kw_only=True):
    """Whether tools are called."""

    type: Literal["auto", "any", "none", "tool"]
    name: Annotated[str | None, Meta(description="With the type `tool`.")] = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if (self.type == "tool") != (self.name is not None):
            raise RequestError("name goes with the type tool, which needs it", param="name")


class Thinking(Strict, frozen=True, kw_only=True):
    """Whether the model thinks before it answers, and how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="With the type `enabled`.")
    ] = None
    display: Literal["summarized"] | None = None

    def __post_init__(self) -> None:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise RequestError(
                "budget_tokens goes with the type enabled, which needs it", param="budget_tokens"
            )


class OutputFormat(Strict, frozen=True, kw_only=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict, frozen=True, kw_only=True):
    """The form of the answer, and how much thinking goes into it."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(Strict, frozen=True, kw_only=True):
    """Taken and not used."""

    user_id: str | None = None


class CountRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    system: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def conversation(self) -> Conversation:
        """What is to be answered, and how.

        Raises:
            RequestError: fields contradict each other, or ask for what is not supported.
        """
        if self.messages[-1].role == "assistant":
            raise RequestError(
                "messages: the last one is the assistant's; continuing a message is not supported",
                param="messages",
            )
        system = [] if self.system is None else [{"role": "system", "content": _text(self.system)}]
        choice, thinking = self.tool_choice, self.thinking
        return Conversation(
            messages=[*system, *(turn for message in self.messages for turn in message.plain())],
            tools=tuple(
                Tool(
                    name=tool.name,
                    description=tool.description,
                    parameters=tool.input_schema,
                    strict=bool(tool.strict),
                    field=f"tools[{index}].input_schema",
                )
                for index, tool in enumerate(self.tools or ())
            ),
            choice="auto" if choice is None else _CHOICES[choice.type],
            named=None if choice is None else choice.name,
            parallel=choice is None or not choice.disable_parallel_tool_use,
            effort=self._effort(),
            max_thinking_tokens=None if thinking is None else thinking.budget_tokens,
        )

    def _effort(self) -> str | None:
        given = self.output_config.effort if self.output_config is not None else None
        if self.thinking is not None and self.thinking.type == "disabled":
            if given is not None:
                raise RequestError(
                    "output_config.effort does not go with thinking that is disabled",
                    param="output_config.effort",
                )
            return "none"
        if given is not None:
            return _EFFORTS.get(given, given)
        return "medium" if self.thinking is not None else None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float | None, Meta(description="0 is greedy. Default: the model's.")] = (
        None
    )
    top_p: float | None = None
    top_k: Annotated[int, Meta(lt=2**31)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @property
    def constrained_by(self) -> str:
        """The field that says what form the answer has; empty if none does."""
        return "" if self._schema is None else "output_config.format.schema"

    @property
    def _schema(self) -> dict[str, Any] | None:
        if self.output_config is None or self.output_config.format is None:
            return None
        return self.output_config.format.schema

    def sampling(self) -> SamplingParams:
        """How to generate.

        Raises:
            RequestError: a value is out of range.
        """
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k")
            if (value := getattr(self, name)) is not None
        }
        schema = self._schema
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            grammar=None if schema is None else schema_grammar(schema),
            **given,
        )


_CHOICES: Final[dict[str, Literal["auto", "required", "none"]]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "auto",
}


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _type_of(block: Block) -> str:
    return str(type(block).__struct_config__.tag)
