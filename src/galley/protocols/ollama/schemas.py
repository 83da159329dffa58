"""Ollama's API: requests, field by field, and their form for the models.

Fields that are accepted and have no effect: the options that control how Ollama's server loads a
model (``num_gpu``, ``num_thread`` and the like), since the server's settings determine that here.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import (
    MAX_CALLS,
    MAX_MESSAGES,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    TOOL_NAME_PATTERN,
    Strict,
)
from galley.protocols.common.structured_output import ANY_OBJECT, schema_grammar
from galley.protocols.ollama.options import (
    KeepAlive,
    Options,
    kept_seconds,
    known_options,
    option_warnings,
)
from galley.tools.conversation import Conversation, Tool
from galley.types import MAX_COUNT, SamplingParams

NoImages: TypeAlias = Annotated[
    Annotated[list[str], Meta(max_length=0)] | None, Meta(description="Not supported.")
]
Think: TypeAlias = Annotated[
    bool | Literal["low", "medium", "high"] | None,
    Meta(description="Whether to think, or how much. Default: the chat template's."),
]
Format: TypeAlias = Annotated[
    Literal["", "json"] | dict[str, Any] | None,
    Meta(description="`json` for any JSON object, or a JSON schema."),
]


class OllamaFunctionCall(Strict, frozen=True, kw_only=True):
    """``function`` of a call in an assistant's message."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    index: int | None = None


class OllamaToolCall(Strict, frozen=True, kw_only=True):
    """A call in an assistant's message."""

    function: OllamaFunctionCall
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Strict, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: NoImages = None
    tool_calls: Annotated[list[OllamaToolCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_name: Annotated[str | None, Meta(description="Name of the tool whose result this is.")] = (
        None
    )
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None


class OllamaFunction(Strict, frozen=True, kw_only=True):
    """``function`` of a tool."""

    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Strict, frozen=True, kw_only=True):
    """One of ``tools``."""

    function: OllamaFunction
    type: Literal["function"] = "function"

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self))
        if size > MAX_TOOL_BYTES:
            raise RequestError(
                f"function: its JSON has {size} bytes, at most {MAX_TOOL_BYTES}", param="function"
            )


class _Request(Strict, frozen=True, kw_only=True):
    """Fields common to chat and generate requests."""

    model: str
    stream: Annotated[bool | None, Meta(description="Default: true.")] = None
    format: Format = None
    options: Options = None
    keep_alive: KeepAlive = None
    think: Think = None

    def __post_init__(self) -> None:
        known_options(self.options)

    @property
    def kept_seconds(self) -> float | None:
        """``keep_alive`` in seconds; below 0: forever; None: as in the settings.

        Raises:
            RequestError: it is not a duration.
        """
        return kept_seconds(self.keep_alive)

    @property
    def streamed(self) -> bool:
        """Whether the answer is sent as lines of a stream."""
        return self.stream is not False

    @property
    def constrained_by(self) -> str:
        """Name of the field that constrains the answer's form; empty if none does."""
        return "format" if self.format else ""

    @property
    def effort(self) -> str | None:
        """The reasoning effort; None: the chat template's default."""
        if isinstance(self.think, bool):
            return "medium" if self.think else "none"
        return self.think

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        grammar = schema_grammar(self.format) if isinstance(self.format, dict) else None
        return known_options(self.options).sampling(
            ANY_OBJECT if self.format == "json" else grammar
        )

    def warnings(self, context: int = MAX_COUNT) -> list[str]:
        """Return warnings of options that are not honored.

        Args:
            context: size of the model's context, in tokens.
        """
        warnings = option_warnings(self.options)
        wanted = known_options(self.options).num_ctx
        if wanted is not None and wanted > context:
            warnings.append(f"options.num_ctx is {wanted}; the model's context is {context} tokens")
        return warnings


class OllamaChatRequest(_Request, frozen=True, kw_only=True):
    """Body of `POST /api/chat`."""

    messages: Annotated[
        Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] | None,
        Meta(description="Without it, the model is only loaded."),
    ] = None
    tools: Annotated[list[OllamaTool], Meta(max_length=MAX_TOOLS)] | None = None

    def conversation(self) -> Conversation:
        """Return the conversation to answer.

        Raises:
            RequestError: two tools have the same name.
        """
        return Conversation(
            messages=_plain(self.messages or ()),
            tools=tuple(
                Tool(
                    name=tool.function.name,
                    description=tool.function.description,
                    parameters=tool.function.parameters,
                    field=f"tools[{index}].function.parameters",
                )
                for index, tool in enumerate(self.tools or ())
            ),
            effort=self.effort,
        )


class OllamaGenerateRequest(_Request, frozen=True, kw_only=True):
    """Body of `POST /api/generate`."""

    prompt: Annotated[str | None, Meta(description="Without it, the model is only loaded.")] = None
    system: str | None = None
    raw: Annotated[
        bool | None, Meta(description="Complete the prompt without the chat template.")
    ] = None
    images: NoImages = None
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Annotated[
        Annotated[list[int], Meta(max_length=0)] | None, Meta(description="Not supported.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raw and self.system:
            raise RequestError("system and raw exclude each other", param="system")

    def conversation(self) -> Conversation:
        """Return the prompt as a conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        user = {"role": "user", "content": self.prompt or ""}
        return Conversation(messages=[*system, user], effort=self.effort)


class OllamaShowRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/show`."""

    model: str | None = None
    name: Annotated[str | None, Meta(description="Older name of `model`.")] = None
    verbose: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    options: Annotated[dict[str, Any] | None, Meta(description="Accepted and ignored.")] = None


def _plain(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Return messages in the form of :class:`galley.tools.conversation.Conversation`.

    Calls have no ids here: a tool's answer is assigned to the first unanswered call of that tool.
    """
    plain: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # name of the tool, and id of the call
    count = 0
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking is not None:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = []
            for call in message.tool_calls:
                name, given = call.function.name, call.id or f"call_{count}"
                count += 1
                waiting.append((name, given))
                function = {"name": name, "arguments": call.function.arguments}
                calls.append({"type": "function", "id": given, "function": function})
            turn["tool_calls"] = calls
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or _answered(waiting, message.tool_name)
            if message.tool_name is not None:
                turn["name"] = message.tool_name
        plain.append(turn)
    return plain


def _answered(waiting: list[tuple[str, str]], name: str | None) -> str:
    for place, (tool, given) in enumerate(waiting):
        if name is None or tool == name:
            del waiting[place]
            return given
    return "call"
