"""Anthropic's Messages API: requests, field by field, and their form for the models.

Fields that are accepted and have no effect: ``metadata``, ``service_tier`` (``auto`` or
``standard_only``: there is only one), ``speed`` (``standard``), ``eager_input_streaming`` (all tool
input streams) and the ``signature`` of thinking that is sent back. ``context_management`` is
accepted, and answers report that no edit was applied. Images, documents and tools that a server
would run are refused by name.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.anthropic.blocks import (
    AnthropicMessage,
    CacheControl,
    TextBlock,
    ToolResultBlock,
    kept_messages,
    removed_tools,
    text_of,
)
from galley.protocols.common.messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    TOOL_NAME_PATTERN,
    Strict,
)
from galley.protocols.common.prefixes import marked_seconds
from galley.protocols.common.structured_output import schema_grammar
from galley.tools.conversation import Conversation, Tool
from galley.types import SamplingParams

MAX_STOPS: Final = 2048

_EFFORTS: Final = {"max": "xhigh"}


class AnthropicTool(Strict, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: Annotated[
        bool | None, Meta(description="Accepted and ignored: all input is streamed.")
    ] = None
    defer_loading: Annotated[
        bool | None, Meta(description="Accepted and ignored: all tools are in the prompt.")
    ] = None
    allowed_callers: Annotated[list[Literal["direct"]], Meta(max_length=1)] | None = None
    input_examples: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)] | None,
        Meta(description="Passed to the model as `examples` of the schema."),
    ] = None

    @property
    def schema(self) -> dict[str, Any]:
        """The input's JSON schema, with the examples."""
        if not self.input_examples:
            return self.input_schema
        return {**self.input_schema, "examples": self.input_examples}

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self))
        if size > MAX_TOOL_BYTES:
            raise RequestError(
                f"input_schema: the tool's JSON has {size} bytes, at most {MAX_TOOL_BYTES}",
                param="input_schema",
            )


class ToolChoice(Strict, frozen=True, kw_only=True):
    """Whether tools may or must be called, and which."""

    type: Literal["auto", "any", "none", "tool"]
    name: Annotated[str | None, Meta(description="With the type `tool`.")] = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if (self.type == "tool") != (self.name is not None):
            raise RequestError(
                "name is required with the type tool, and only allowed with it", param="name"
            )


class Thinking(Strict, frozen=True, kw_only=True):
    """Whether the model thinks before it answers, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="With the type `enabled`.")
    ] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None,
        Meta(description="`omitted`: thinking is returned as a block without text."),
    ] = None

    def __post_init__(self) -> None:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise RequestError(
                "budget_tokens is required with the type enabled, and only allowed with it",
                param="budget_tokens",
            )


class OutputFormat(Strict, frozen=True, kw_only=True):
    """The required form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict, frozen=True, kw_only=True):
    """The form of the answer, and the reasoning effort."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(Strict, frozen=True, kw_only=True):
    """Accepted and not used."""

    user_id: str | None = None


class ContextManagement(Strict, frozen=True, kw_only=True):
    """Parts that may be dropped from a long conversation; none are, so ``applied_edits`` is empty."""

    edits: Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)] | None = None


class CountRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    system: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[
        OutputFormat | None, Meta(description="Older name of `output_config.format`.")
    ] = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None
    mcp_servers: Annotated[list[Any], Meta(max_length=0)] | None = None

    @property
    def keep_seconds(self) -> float:
        """How long the prefix is to stay cached after the request: the longest time of its marks."""
        marked: list[Any] = [self, *(self.tools or ())]
        marked += self.system if isinstance(self.system, list) else []
        for message in self.messages:
            marked += message.content if isinstance(message.content, list) else []
        results = [block.content for block in marked if isinstance(block, ToolResultBlock)]
        marked += [part for content in results if isinstance(content, list) for part in content]
        found = [one.cache_control for one in marked]
        return marked_seconds({"ttl": mark.ttl} for mark in found if mark is not None)

    def conversation(self) -> Conversation:
        """Return the conversation to answer, with its tools and thinking options.

        Raises:
            RequestError: fields contradict each other, or request something unsupported.
        """
        kept = kept_messages(self.messages)
        messages = [turn for message in kept for turn in message.plain()]
        if not messages:
            raise RequestError("messages: all of them are empty", param="messages")
        removed = removed_tools(self.messages)
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": text_of(self.system, "\n\n")})
        choice, thinking = self.tool_choice, self.thinking
        return Conversation(
            messages=messages,
            tools=tuple(
                Tool(
                    name=tool.name,
                    description=tool.description,
                    parameters=tool.schema,
                    strict=bool(tool.strict),
                    field=f"tools[{index}].input_schema",
                )
                for index, tool in enumerate(self.tools or ())
                if tool.name not in removed
            ),
            choice="auto" if choice is None else _CHOICES[choice.type],
            named=None if choice is None else choice.name,
            parallel=choice is None or not choice.disable_parallel_tool_use,
            continues=messages[-1]["role"] == "assistant",
            effort=self._effort(),
            effort_is_hint=thinking is None or thinking.type == "adaptive",
            max_thinking_tokens=None if thinking is None else thinking.budget_tokens,
        )

    def _effort(self) -> str | None:
        given = self.output_config.effort if self.output_config is not None else None
        if self.thinking is not None and self.thinking.type == "disabled":
            if given is not None:
                raise RequestError(
                    "output_config.effort and disabled thinking exclude each other",
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
    container: None = None
    diagnostics: None = None
    fallbacks: None = None
    inference_geo: None = None

    @property
    def constrained_by(self) -> str:
        """Name of the field that constrains the answer's form; empty if none does."""
        if self.output_format is not None:
            return "output_format.schema"
        return "" if self._schema is None else "output_config.format.schema"

    @property
    def omits_thinking(self) -> bool:
        """Whether thinking is reported without its text."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def _schema(self) -> dict[str, Any] | None:
        newer = None if self.output_config is None else self.output_config.format
        chosen = newer or self.output_format
        return None if chosen is None else chosen.schema

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k")
            if (value := getattr(self, name)) is not None
        }
        if self.output_format is not None and self.output_config is not None:
            raise RequestError(
                "output_format is an older name of output_config.format; give only one",
                param="output_format",
            )
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
