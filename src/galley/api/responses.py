"""What the API answers, field by field: plain dictionaries, typed, and the source of the OpenAPI page."""

from typing import Literal, NotRequired, TypedDict

from galley.gateway.generation import Finish
from galley.gateway.generation import Usage as TokenCounts
from galley.gateway.receipt import Receipt
from galley.types import Task
from galley.types.model_info import WeightReceipt


class ErrorDetail(TypedDict):
    """What went wrong, and in which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Every answer but 2xx."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class LimitState(TypedDict):
    """One limit per minute: its size, None without one, what is left, and what the last minute used."""

    limit: int | None
    remaining: int | None
    last_minute: int


class TenantState(TypedDict):
    """What a tenant may do, and does now."""

    name: str
    weight: float
    priority: int
    admin: bool
    max_context: int | None
    concurrency: int | None
    running: int
    requests: LimitState
    tokens: LimitState


class TenantList(TypedDict):
    """All tenants of the key file."""

    tenants: list[TenantState]


class Reloaded(TypedDict):
    """The model that was loaded again."""

    model: str


class AdapterCard(TypedDict):
    """A LoRA adapter of `model`. Requests say its `id` or `name` as their model."""

    id: str
    object: Literal["adapter"]
    created: int
    name: str
    model: str
    path: str


class AdapterList(TypedDict):
    """Answer of `GET /v1/adapters`."""

    object: Literal["list"]
    data: list[AdapterCard]


class AdapterUnloaded(TypedDict):
    """The LoRA adapter that requests may not name any more."""

    id: str
    object: Literal["adapter"]
    deleted: Literal[True]


class ReceiptFields(TypedDict, total=False):
    """What a request took: milliseconds, and with `price_per_hour` its cost in that currency.

    Where tokens were guessed also how many guesses were verified, and how many of them were right.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    proposed_tokens: int
    accepted_tokens: int
    cost: float


class CompletionTokensDetails(TypedDict):
    """What the generated tokens were."""

    reasoning_tokens: int


class Usage(ReceiptFields):
    """Tokens of one request, all choices together; the receipt is there when it is complete.

    The details of completion tokens are told where answers are searched for calls or thinking.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class AudioUsage(ReceiptFields):
    """Seconds of audio of one request, and its receipt."""

    type: Literal["duration"]
    seconds: float


def usage(counts: TokenCounts, receipt: Receipt | None = None) -> Usage:
    """The answer's ``usage``. ``receipt``: of a request that is complete."""
    tokens: Usage = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    if counts.reasoning is not None:
        tokens["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return tokens if receipt is None else {**tokens, **told_receipt(receipt)}


def audio_usage(seconds: float, receipt: Receipt) -> AudioUsage:
    """The ``usage`` of a transcript."""
    return {"type": "duration", "seconds": round(seconds, 2), **told_receipt(receipt)}


def told_receipt(receipt: Receipt) -> ReceiptFields:
    """The receipt of a complete request, as answers tell it."""
    return receipt.fields()  # type: ignore[return-value]  # its names are those of the class


class TopLogprob(TypedDict):
    """One alternative; ``bytes`` is exact where ``token`` is not valid UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """The chosen token and its best alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat choice."""

    content: list[ChatLogprob]
    refusal: None


class CalledFunction(TypedDict, total=False):
    """A function that is called; ``arguments`` is the text of a JSON object, in a stream a piece of it."""

    name: str
    arguments: str


class ToolCallDetails(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(TypedDict):
    """What a chunk adds to the call ``index``; id, type and name come with the first."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction


class ChatMessage(TypedDict):
    """The answer. Without text beside calls ``content`` is null.

    ``reasoning_content`` is the model's thinking; ``warning`` says why calls in the text were not read.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDetails]]
    warning: NotRequired[str]


class ChatChoice(TypedDict):
    """One complete answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(TypedDict):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict, total=False):
    """What a chunk adds."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]
    warning: str


class ChatChunkChoice(TypedDict):
    """What a chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class _ChunkUsage(TypedDict, total=False):
    usage: Usage | None


class ChatChunk(_ChunkUsage):
    """One event of a streamed chat answer; ``usage`` is there as `stream_options` ask for it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]


class CompletionLogprobs(TypedDict):
    """Parallel lists, an entry for each token; ``text_offset`` counts characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One completion, or what a chunk adds to one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(_ChunkUsage):
    """Answer, or one event of a streamed answer, of `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]


ModelState = Literal["loaded", "loading", "unloaded"]


class ModelCard(TypedDict):
    """A served model.

    What is known only of a loaded model (`max_model_len`, `weights`, `memory`) is null while it is none.
    `memory` is in bytes, and `expires_at` the Unix time at which a model that was loaded on request will be
    unloaded if nobody asks for it; null if it stays. `parent` is the model that a LoRA adapter is added to.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    tasks: list[Task]
    weights: WeightReceipt | None
    state: ModelState
    memory: int | None
    expires_at: int | None
    parent: str | None


class ModelList(TypedDict):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(TypedDict):
    """Answer of `POST /tokenize`."""

    tokens: list[int]
    count: int
    max_model_len: int


class Text(TypedDict):
    """Answer of `POST /detokenize`."""

    prompt: str


class Status(TypedDict):
    """Answer of `GET /health` and `GET /ready`."""

    status: str
