"""Ollama's API: requests, field by field, and their form for the models.

Fields that are accepted and have no effect: the options that control how Ollama's server loads a
model (``num_gpu``, ``num_thread`` and the like), since the server's settings determine that here.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError, shown
from galley.protocols.common.messages import (
    MAX_CALLS,
    MAX_MESSAGES,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    TOOL_NAME_PATTERN,
    Strict,
)
from galley.protocols.common.structured_output import ANY_OBJECT, schema_grammar
from galley.protocols.common.validate import validate
from galley.tools.conversation import Conversation, Tool
from galley.types import MAX_COUNT, Grammar, SamplingParams

MAX_STOPS: Final = 2048

_MOST_NAMED: Final = 8
"""Number of unknown options that a warning names."""

_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", re.ASCII)
_DURATION: Final = re.compile(r"(-?)(0|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h)){1,4})", re.ASCII)
"""Durations in Go's notation, which Ollama accepts."""
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_WITHOUT_LIMIT: Final = (-1, -2)
"""Values of ``num_predict``: no limit, and the rest of the context."""

_PASSED_ON: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_last_n": "penalty_window",
}
"""Ollama's options -> fields of SamplingParams."""

NoImages: TypeAlias = Annotated[
    Annotated[list[str], Meta(max_length=0)] | None, Meta(description="Not supported.")
]
KeepAlive: TypeAlias = Annotated[
    float | str | None,
    Meta(
        description="How long a model that is loaded on request stays loaded after this request: "
        "seconds, or a duration such as `5m` or `1h30m`; below 0: forever. Other models stay loaded."
    ),
]
Think: TypeAlias = Annotated[
    bool | Literal["low", "medium", "high"] | None,
    Meta(description="Whether to think, or how much. Default: the chat template's."),
]
Format: TypeAlias = Annotated[
    Literal["", "json"] | dict[str, Any] | None,
    Meta(description="`json` for any JSON object, or a JSON schema."),
]


class OllamaOptions(Strict, frozen=True, kw_only=True):
    """The options supported here. The model's defaults apply where none is given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(lt=2**31)] | None = None
    min_p: float | None = None
    seed: Annotated[int | None, Meta(description="-1: drawn at random.")] = None
    num_predict: Annotated[int | None, Meta(description="-1 and -2: no limit.")] = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Annotated[
        int | None,
        Meta(
            description="Number of last tokens that penalties apply to. -1, the default: all; 0: none."
        ),
    ] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Literal[0] | None = None
    tfs_z: Annotated[float, Meta(ge=1.0, le=1.0)] | None = None
    typical_p: Annotated[float, Meta(ge=1.0, le=1.0)] | None = None
    num_ctx: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Accepted and ignored: the context is the model's. A shorter context gives a "
            "warning."
        ),
    ] = None
    num_keep: Annotated[
        int | None, Meta(description="Accepted and ignored: nothing is truncated.")
    ] = None
    num_batch: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    num_gpu: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    main_gpu: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    num_thread: Annotated[int | None, Meta(description="Accepted and ignored.")] = None
    numa: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    low_vram: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    use_mmap: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None
    use_mlock: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """Fields of SamplingParams that the options set."""
        given: dict[str, Any] = {
            field: value
            for name, field in _PASSED_ON.items()
            if (value := getattr(self, name)) is not None
        }
        if self.num_predict is not None and self.num_predict not in _WITHOUT_LIMIT:
            given["max_tokens"] = self.num_predict
        if self.stop:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return given

    def sampling(self, grammar: Grammar | None) -> SamplingParams:
        """Return the options as sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(grammar=grammar, **self.given)


class _WithOptions(Strict, frozen=True, kw_only=True):
    """Wraps options so that errors name them as requests do: ``options.temperature``."""

    options: OllamaOptions = OllamaOptions()


_KNOWN: Final = msgspec.json.schema(OllamaOptions)["$defs"]["OllamaOptions"]["properties"]

Options: TypeAlias = Annotated[
    dict[str, Any] | None,
    Meta(
        description="How to generate. Nulls are defaults; unknown options are ignored, with a warning in "
        "the answer.",
        extra_json_schema={"properties": _KNOWN},
    ),
]


def known_options(given: dict[str, Any] | None) -> OllamaOptions:
    """Return the options that are supported here and are not null.

    Raises:
        RequestError: an option has an invalid value; ``param`` names the option.
    """
    known = {n: v for n, v in (given or {}).items() if n in _KNOWN and v is not None}
    return validate(_WithOptions, {"options": known}).options


def option_warnings(given: dict[str, Any] | None) -> list[str]:
    """Return a warning that names the unsupported options that are not null, or an empty list."""
    unknown = [n for n, v in (given or {}).items() if n not in _KNOWN and v is not None]
    if not unknown:
        return []
    names = ", ".join(shown(f"options.{name[:64]}") for name in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return [f"unknown options, ignored: {names}{more}"]


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


def kept_seconds(keep_alive: float | str | None) -> float | None:
    """Return ``keep_alive`` in seconds; below 0: forever; None: as in the settings.

    Raises:
        RequestError: it is not a duration.
    """
    if keep_alive is None or isinstance(keep_alive, int | float):
        return keep_alive
    match = _DURATION.fullmatch(keep_alive)
    if match is None:
        raise RequestError(
            f"keep_alive must be seconds, or a duration such as 5m or 1h30m, got "
            f"{shown(keep_alive)}",
            param="keep_alive",
        )
    parts = _PART.findall(match[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if match[1] else seconds


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
        """Return warnings of options that are not honoured.

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
