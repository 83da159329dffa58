"""OpenAI's Responses API: requests, field by field, and their form for the models.

Fields that are accepted and have no effect: ``user``, ``safety_identifier``, ``metadata``
(repeated in the answer), ``client_metadata``, ``service_tier`` (``auto`` and ``default``: there is
only one), ``include`` of content that answers never or always have, ``reasoning.summary`` (thinking
is returned as it is) and ``text.verbosity``.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Strict
from galley.protocols.common.prefixes import (
    PromptCacheKey,
    PromptCacheOptions,
    PromptCacheRetention,
    retained_seconds,
)
from galley.protocols.common.structured_output import ANY_OBJECT, schema_grammar
from galley.protocols.openai.responses.summaries import summary_of
from galley.protocols.openai.responses.tools import ResponseTool, ToolName, full_name, model_tools
from galley.tools.conversation import Conversation, read_arguments
from galley.types import Grammar, SamplingParams

MAX_METADATA: Final = 64
CallId: TypeAlias = Annotated[str, Meta(max_length=256)]

_NEEDED: Final = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "compaction": ("encrypted_content",),
}
_ALLOWED: Final = {
    "message": ("phase", "warning"),
    "function_call": ("namespace",),
    "function_call_output": (),
    "reasoning": ("summary", "content", "encrypted_content"),
    "compaction": (),
}
_ALWAYS: Final = ("type", "id", "status")


class ContentPart(Strict, frozen=True, kw_only=True):
    """A piece of text in an item."""

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    logprobs: Annotated[list[Any] | None, Meta(description="Accepted and ignored.")] = None


class InputItem(Strict, frozen=True, kw_only=True):
    """One item of a conversation; its type determines its fields."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "compaction"] = (
        "message"
    )
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    call_id: CallId | None = None
    name: ToolName | None = None
    arguments: Annotated[
        str | None,
        Meta(description="A JSON object, as text. Other text is passed to the template unchanged."),
    ] = None
    output: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    summary: Annotated[list[Any], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: Annotated[
        str | None,
        Meta(
            description="Of a compaction: what `/v1/responses/compact` returned. Of reasoning: accepted "
            "and ignored, since only the server that wrote it can read it."
        ),
    ] = None
    phase: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    namespace: ToolName | None = None
    warning: Annotated[
        str | None, Meta(description="From an earlier answer; accepted and ignored.")
    ] = None

    def __post_init__(self) -> None:
        needed = _NEEDED[self.type]
        for field in self.__struct_fields__:
            if field in _ALWAYS:
                continue
            given = getattr(self, field) is not None
            if field in needed and not given:
                raise RequestError(f"{field}: required in an item of type {self.type}", param=field)
            if given and field not in needed and field not in _ALLOWED[self.type]:
                raise RequestError(
                    f"{field}: not allowed in an item of type {self.type}", param=field
                )


class NamedFunction(Strict, frozen=True, kw_only=True):
    """A ``tool_choice`` that names a tool."""

    type: Literal["function"]
    name: str


class TextFormat(Strict, frozen=True, kw_only=True):
    """The required form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: Annotated[
        bool | None, Meta(description="Accepted and ignored: the schema is always enforced.")
    ] = None

    def __post_init__(self) -> None:
        if (self.type == "json_schema") != (self.schema is not None):
            raise RequestError(
                "schema is required with the type json_schema, and only allowed with it",
                param="schema",
            )

    @property
    def grammar(self) -> Grammar | None:
        """The grammar that the answer must follow; None for any text."""
        if self.schema is not None:
            return schema_grammar(self.schema)
        return ANY_OBJECT if self.type == "json_object" else None


class TextOptions(Strict, frozen=True, kw_only=True):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="Accepted and ignored.")
    ] = None


class ReasoningOptions(Strict, frozen=True, kw_only=True):
    """Options of reasoning: its effort."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        Meta(description="Accepted and ignored: thinking is returned unchanged."),
    ] = None


class ResponseStreamOptions(Strict, frozen=True, kw_only=True):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = None


Include: TypeAlias = Literal[
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


def items_of(given: str | Sequence[InputItem]) -> list[InputItem]:
    """Return the items of a request's input; a text is a message of the user."""
    return [InputItem(role="user", content=given)] if isinstance(given, str) else list(given)


class ResponseCountRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/responses/input_tokens`."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Meta(
            description="auto: the first turns of a conversation that is too long are left out. "
            "Default: such a conversation is a 400. `input_tokens` counts all of it."
        ),
    ] = None
    previous_response_id: Annotated[
        str | None, Meta(description="Continue the conversation from this response.")
    ] = None
    conversation: Annotated[None, Meta(description="See `previous_response_id`.")] = None

    def as_conversation(self, earlier: Sequence[InputItem] = ()) -> Conversation:
        """Return the conversation to answer, with its tools and reasoning effort.

        Args:
            earlier: items of the conversation that precede this request's.

        Raises:
            RequestError: fields contradict each other.
        """
        choice = self.tool_choice
        items = items_of(self.input)
        if len(earlier) + len(items) > MAX_MESSAGES:
            raise RequestError(
                f"input: the conversation would have {len(earlier) + len(items)} items, more than the "
                f"allowed {MAX_MESSAGES}",
                param="input",
            )
        return Conversation(
            messages=_begun(self.instructions, _turns([*earlier, *items])),
            tools=model_tools(self.tools),
            choice=choice if isinstance(choice, str) else "auto",
            named=choice.name if isinstance(choice, NamedFunction) else None,
            parallel=self.parallel_tool_calls is not False,
            effort=None if self.reasoning is None else self.reasoning.effort,
        )


class ResponseCompactRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/responses/compact`."""

    model: str
    input: str | Annotated[list[InputItem], Meta(max_length=MAX_MESSAGES)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[
        str | None, Meta(description="Compact the conversation that this response ends.")
    ] = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: PromptCacheKey = None
    prompt_cache_retention: PromptCacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None

    def __post_init__(self) -> None:
        if not self.input and self.previous_response_id is None:
            raise RequestError("input: required without previous_response_id", param="input")

    @property
    def keep_seconds(self) -> float:
        """How long the prefix is to stay cached after the request."""
        return retained_seconds(
            self.prompt_cache_key, self.prompt_cache_retention, self.prompt_cache_options
        )

    def items(self) -> list[InputItem]:
        """Return the request's items."""
        return items_of(self.input) if self.input else []


class ResponseRequest(ResponseCountRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`."""

    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None = None
    client_metadata: Annotated[
        Annotated[dict[str, Any], Meta(max_length=MAX_METADATA)] | None,
        Meta(description="Accepted and ignored."),
    ] = None
    store: Annotated[
        bool | None,
        Meta(
            description="Whether to store the response. Default: true if the server stores responses."
        ),
    ] = None
    service_tier: Literal["auto", "default"] | None = None
    background: Literal[False] | None = None
    include: Annotated[
        Annotated[list[Include], Meta(max_length=16)] | None,
        Meta(description="Accepted and ignored: everything is included."),
    ] = None
    top_logprobs: Literal[0] | None = None
    max_tool_calls: None = None
    prompt: None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: PromptCacheKey = None
    prompt_cache_retention: PromptCacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None

    @property
    def keep_seconds(self) -> float:
        """How long the prefix is to stay cached after the request."""
        return retained_seconds(
            self.prompt_cache_key, self.prompt_cache_retention, self.prompt_cache_options
        )

    @property
    def constrained_by(self) -> str:
        """Name of the field that constrains the answer's form; empty if none does."""
        return "text.format" if self._grammar is not None else ""

    @property
    def _grammar(self) -> Grammar | None:
        chosen = None if self.text is None else self.text.format
        return None if chosen is None else chosen.grammar

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        given = {
            name: value
            for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
            if (value := getattr(self, name)) is not None
        }
        return SamplingParams(max_tokens=self.max_output_tokens, grammar=self._grammar, **given)


def _begun(instructions: str | None, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, headed by one system message: many templates allow no more than one.

    It holds the instructions, which come first, and the conversation's own leading system messages.
    """
    first = next((n for n, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    said = [turn["content"] for turn in turns[:first]]
    if instructions is not None:
        said.insert(0, instructions)
    system = [{"role": "system", "content": "\n\n".join(said)}] if said else []
    return system + turns[first:]


def _turns(items: list[InputItem]) -> list[dict[str, Any]]:
    """Convert items to messages; thinking and calls join the assistant message next to them.

    Raises:
        RequestError: an output is of no call, or a compaction was written by another server.
    """
    turns: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None  # the assistant message that is still open
    called: set[str | None] = set()
    for item in items:
        match item.type:
            case "message" if item.role != "assistant":
                own = None
                role = "system" if item.role == "developer" else item.role
                turns.append({"role": role, "content": _text(item.content)})
                continue
            case "compaction":
                own = _compact(turns, summary_of(item.encrypted_content or ""))
                continue
            case "function_call_output":
                own = None
                if item.call_id not in called:
                    raise RequestError(
                        f"No tool call found for function call output with call_id {item.call_id!r}",
                        param="input",
                    )
                output = {
                    "role": "tool",
                    "content": _text(item.output),
                    "tool_call_id": item.call_id,
                }
                turns.append(output)
                continue
        if own is None or (item.type == "message" and own["content"]):
            own = {"role": "assistant", "content": ""}
            turns.append(own)
        if item.type == "message":
            own["content"] = _text(item.content)
        elif item.type == "reasoning":
            own["reasoning_content"] = own.get("reasoning_content", "") + _text(item.content)
        else:
            name = full_name(item.namespace, item.name or "")
            function = {"name": name, "arguments": read_arguments(item.arguments or "")}
            call = {"type": "function", "id": item.call_id, "function": function}
            own.setdefault("tool_calls", []).append(call)
            called.add(item.call_id)
    return turns


def _compact(turns: list[dict[str, Any]], summary: str) -> dict[str, Any]:
    """Add the summary of what was between and after the user messages that were kept; return its message.

    These become one message, since many templates require that roles alternate; for the same reason, calls
    that follow the summary join its message.
    """
    said: list[str] = []
    while turns and turns[-1]["role"] == "user":
        said.insert(0, turns.pop()["content"])
    if said:
        turns.append({"role": "user", "content": "\n\n".join(said)})
    said_so_far = f"Summary of the conversation so far:\n\n{summary}"
    turns.append({"role": "assistant", "content": said_so_far})
    return turns[-1]


def _text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
