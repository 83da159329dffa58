"""What the API takes, field by field.

A field that is not here is refused by name. Types are strict: ``true`` is no integer and ``"1"`` no
number. Ranges are checked by :class:`galley.types.SamplingParams`, the one place that knows them.

Fields of OpenAI's API that are taken and change nothing, because nothing here could depend on them:
``user``, ``metadata``, ``store`` (only ``false``: nothing is stored), ``service_tier`` (only ``auto``
and ``default``: there is one), ``response_format`` (only ``{"type": "text"}``: text is the only one),
and, in assistant messages sent back as they were received, ``null`` for what this server never fills
(``refusal``, ``tool_calls``, ``function_call``, ``audio``, ``annotations``).
"""

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from galley.errors import RequestError
from galley.types import MAX_LOGIT_BIAS, MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from galley.speech.options import TranscribeOptions

# Bounds far beyond use keep the work that a hostile body can ask for small: without fail_fast a list of
# a million wrong items makes a million errors, which takes minutes.
MAX_PROMPTS: Final = 2048
MAX_PROMPT_IDS: Final = 2**20
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 256
MAX_METADATA: Final = 64

Granularity = Literal["segment", "word"]
Texts = Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
TokenIds = Annotated[list[int], Field(max_length=MAX_PROMPT_IDS, fail_fast=True)]

_PASSED_ON: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
)
"""Fields whose names and meanings are those of :class:`SamplingParams`."""

UNKNOWN_FIELD: Final = "unknown_field"
"""Type of the validation error whose context names a field that is not here."""

_TOKEN_KEY: Final = re.compile(r"[0-9]{1,10}")


class Strict(BaseModel):
    """No conversions, no unknown fields, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        """One error for the first unknown field, where pydantic makes one for each of a million."""
        if isinstance(data, dict) and not data.keys() <= cls.model_fields.keys():
            name = next(key for key in data if key not in cls.model_fields)
            raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", {"name": name})
        return data


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    )
    name: str | None = Field(None, description="Given to the chat template.")
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates know it: role and text.

        They do not know ``developer``, OpenAI's newer name of ``system``.
        """
        text = (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": text}
        return message if self.name is None else {**message, "name": self.name}


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TextFormat(Strict):
    """``response_format``: plain text is the only one implemented."""

    type: Literal["text"]


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(
        None, description="Send a last chunk with the usage and no choices."
    )


class GenerationRequest(Strict):
    """The fields that chat and plain completions share."""

    model: str = Field(description="The served model's name, as in `GET /v1/models`.")
    temperature: float | None = Field(None, description="0 is greedy. Default: the model's.")
    top_p: float | None = Field(None, description="In (0, 1].")
    top_k: Annotated[int, Field(lt=2**31)] | None = Field(None, description="0 or -1 keeps all.")
    min_p: float | None = Field(None, description="In [0, 1].")
    presence_penalty: float | None = Field(None, description="In [-2, 2].")
    frequency_penalty: float | None = Field(None, description="In [-2, 2].")
    repetition_penalty: float | None = Field(None, description="In [0.01, 100]; 1 is off.")
    logit_bias: (
        Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS, fail_fast=True)] | None
    ) = Field(None, description="Token id, as text, to a bias in [-100, 100].")
    seed: int | None = Field(None, description="64 bits; the same seed gives the same text.")
    n: int | None = Field(None, description="Choices for each prompt.")
    max_tokens: int | None = Field(None, description="Default: the rest of the context.")
    min_tokens: int | None = Field(None, description="Nothing ends the text before.")
    stop: str | Texts | None = Field(None, description="Not part of the text they end.")
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    priority: Annotated[int, Field(ge=-100, le=100)] | None = Field(
        None, description="Lower is sooner; waiting makes up for it."
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Cached prefixes are shared between equal salts only."
    )
    user: str | None = Field(None, description="Taken and not used.")
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA, fail_fast=True)] | None = (
        Field(None, description="Taken and not used.")
    )
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    service_tier: Literal["auto", "default"] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _sampling(self, **fields: Any) -> SamplingParams:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        given = {name: value for name in _PASSED_ON if (value := getattr(self, name)) is not None}
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            logit_bias=_token_keys(self.logit_bias or {}),
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            **(given | fields),
        )


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, description="Newer name of `max_tokens`.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="Only with `logprobs`."
    )
    response_format: TextFormat | None = None

    def sampling(self) -> SamplingParams:
        """How to generate.

        Raises:
            RequestError: a value is out of range, or fields contradict each other.
        """
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        limit, newer = self.max_tokens, self.max_completion_tokens
        if limit is not None and newer is not None and limit != newer:
            raise RequestError(
                f"max_tokens ({limit}) and max_completion_tokens ({newer}) differ; give one",
                param="max_completion_tokens",
            )
        return self._sampling(
            max_tokens=newer if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    @property
    def limit_name(self) -> str:
        """The name by which the request gave its token limit."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: (
        str
        | Texts
        | TokenIds
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    ) = Field(description="A text, token ids, or a list of either.")
    echo: bool | None = Field(None, description="Put the prompt before the completion.")
    logprobs: int | None = Field(
        None, description="Alternatives for each token; with `echo`, for the prompt's tokens too."
    )

    def sampling(self) -> SamplingParams:
        """How to generate.

        Raises:
            RequestError: a value is out of range, or fields contradict each other.
        """
        return self._sampling(
            logprobs=self.logprobs, prompt_logprobs=self.logprobs if self.echo else None
        )

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, as a list in every case.

        Raises:
            RequestError: there is none, or one is empty.
        """
        match self.prompt:
            case str():
                prompts: Any = [self.prompt]
            case [int(), *_]:
                prompts = [self.prompt]
            case _:
                prompts = self.prompt
        if not prompts or not all(prompts):
            raise RequestError("prompt is empty; give at least one token", param="prompt")
        return prompts  # type: ignore[no-any-return]


class TokenizeRequest(Strict):
    """Body of `POST /tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        None, description="Only with `prompt`: whether to add BOS and the like. Default: true."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Only with `messages`: whether to open the answer. Default: true."
    )


class DetokenizeRequest(Strict):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, value in bias.items():
        if not _TOKEN_KEY.fullmatch(key):
            raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        if int(key) in by_id:
            raise RequestError(f"logit_bias names token {int(key)} twice", param="logit_bias")
        by_id[int(key)] = value
    return by_id


class TranslationRequest(Strict):
    """``POST /v1/audio/translations``, beside the ``file``. A form's fields are text, and read as such."""

    model_config = ConfigDict(strict=False)

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0.0, le=1.0)
    stream: bool = False

    def options(self) -> "TranscribeOptions":
        """What is wanted, as the speech room has it.

        Raises:
            RequestError: fields contradict each other.
        """
        from galley.speech.options import QualityRules, TranscribeOptions

        if self.stream and self.response_format not in ("json", "text"):
            raise RequestError(
                f"stream goes with response_format json or text, not {self.response_format}",
                param="stream",
            )
        # As OpenAI has it: from 0 on it rises by itself where a transcript is bad.
        rules = (
            QualityRules(temperatures=(self.temperature,)) if self.temperature else QualityRules()
        )
        return TranscribeOptions(task="translate", prompt=self.prompt, rules=rules)

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """What has times in verbose_json."""
        return ("segment",)


class TranscriptionRequest(TranslationRequest):
    """``POST /v1/audio/transcriptions``, beside the ``file``."""

    language: str | None = None
    timestamp_granularities: tuple[Granularity, ...] = ()

    def options(self) -> "TranscribeOptions":
        """See :meth:`TranslationRequest.options`."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise RequestError(
                "timestamp_granularities goes with response_format verbose_json",
                param="timestamp_granularities",
            )
        return dataclasses.replace(
            super().options(),
            task="transcribe",
            language=self.language,
            word_timestamps="word" in self.timestamp_granularities,
        )

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """See :attr:`TranslationRequest.granularities`."""
        return self.timestamp_granularities or super().granularities
