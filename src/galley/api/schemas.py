"""What the API takes, field by field.

A field that is not here is refused by name. Types are strict: ``true`` is no integer and ``"1"`` no
number. Ranges are checked by :class:`galley.types.SamplingParams`, the one place that knows them.

Fields of OpenAI's API that are taken and change nothing, because nothing here could depend on them:
``user``, ``safety_identifier``, ``prompt_cache_key`` (prefixes are cached anyway), ``metadata``, ``store``
(nothing is stored), ``service_tier`` (only ``auto`` and ``default``: there is one), and, in assistant
messages sent back as they were received, ``null`` for what this server never fills (``refusal``,
``function_call``, ``audio``, ``annotations``). Fields of what it does not do may ask for nothing.
"""

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from galley.api.messages import Choice, Messages, Tools, conversation_of
from galley.api.messages import Strict as Strict
from galley.api.structured_output import (
    ChoiceField,
    GrammarField,
    JsonField,
    RegexField,
    ResponseFormat,
    StructuredOutputs,
    constraint_of,
)
from galley.errors import RequestError
from galley.settings.config import ADAPTER_NAME
from galley.tools.conversation import Conversation
from galley.types import MAX_LOGIT_BIAS, MAX_LOGPROBS, SamplingParams
from galley.types.audio import SampleType

if TYPE_CHECKING:
    from galley.speech.options import SpeechOptions, TranscribeOptions
    from galley.speech.sources import RawPcm

# Bounds far beyond use, which keep the work that a hostile body can ask for small.
MAX_PROMPTS: Final = 2048
MAX_PROMPT_IDS: Final = 2**20
MAX_METADATA: Final = 64

Granularity = Literal["segment", "word"]
Texts: TypeAlias = Annotated[list[str], Meta(max_length=MAX_PROMPTS)]
TokenIds: TypeAlias = Annotated[list[int], Meta(max_length=MAX_PROMPT_IDS)]
_ID_LISTS: Final = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "maxItems": MAX_PROMPT_IDS},
    "maxItems": MAX_PROMPTS,
}
Prompt: TypeAlias = Annotated[
    str | Annotated[list[str | int | TokenIds], Meta(max_length=MAX_PROMPT_IDS)],
    # One kind of items in a list, which msgspec has no type for.
    Meta(
        description="A text, token ids, or a list of either.",
        extra_json_schema={
            "allOf": [
                {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
                        {"type": "array", "items": {"type": "integer"}},
                        _ID_LISTS,
                    ]
                }
            ]
        },
    ),
]

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
    "speculation",
)
"""Fields whose names and meanings are those of :class:`SamplingParams`."""

_TOKEN_KEY: Final = re.compile(r"[0-9]{1,10}")


class StreamOptions(Strict, frozen=True, kw_only=True):
    """Options of a streamed answer."""

    include_usage: Annotated[
        bool | None, Meta(description="Send a last chunk with the usage and no choices.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="Send the tokens so far as `usage` of each other chunk, too.")
    ] = None


class GenerationRequest(Strict, frozen=True, kw_only=True):
    """The fields that chat and plain completions share."""

    model: Annotated[
        str | None,
        Meta(
            description="The served model's name, as in `GET /v1/models`. Default: the only one that "
            "generates."
        ),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(le=2.0)] | None,
        Meta(description="In [0, 2]; 0 is greedy. Default: the model's."),
    ] = None
    top_p: Annotated[float | None, Meta(description="In [0, 1]; 0 is greedy.")] = None
    top_k: Annotated[
        Annotated[int, Meta(lt=2**31)] | None, Meta(description="0 or -1 keeps all.")
    ] = None
    min_p: Annotated[float | None, Meta(description="In [0, 1].")] = None
    presence_penalty: Annotated[float | None, Meta(description="In [-2, 2].")] = None
    frequency_penalty: Annotated[float | None, Meta(description="In [-2, 2].")] = None
    repetition_penalty: Annotated[float | None, Meta(description="In [0.01, 100]; 1 is off.")] = (
        None
    )
    logit_bias: Annotated[
        Annotated[dict[str, float], Meta(max_length=MAX_LOGIT_BIAS)] | None,
        Meta(description="Token id, as text, to a bias in [-100, 100]."),
    ] = None
    seed: Annotated[
        int | None,
        Meta(description="64 bits; the same seed gives the same text. -1: drawn at random."),
    ] = None
    n: Annotated[int | None, Meta(description="Choices for each prompt.")] = None
    best_of: Annotated[
        Literal[1] | None, Meta(description="Taken and not used: `n` choices are made.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Meta(
            description="Default: 16 for a completion, as OpenAI has it; in chat the model's "
            "`sampling_defaults`, or the rest of the context."
        ),
    ] = None
    min_tokens: Annotated[int | None, Meta(description="Nothing ends the text before.")] = None
    stop: Annotated[str | Texts | None, Meta(description="Not part of the text they end.")] = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Meta(description="Only with `stream`.")] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-100, le=100)] | None,
        Meta(description="Lower is sooner; waiting makes up for it."),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Cached prefixes are shared between equal salts only."),
    ] = None
    speculation: Annotated[
        Literal["auto", "off"] | None,
        Meta(description="Whether guesses of the next tokens are verified; the text is the same."),
    ] = None
    user: Annotated[str | None, Meta(description="Taken and not used.")] = None
    metadata: Annotated[
        Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None,
        Meta(description="Taken and not used."),
    ] = None
    store: Annotated[bool | None, Meta(description="Taken and not used: nothing is stored.")] = None
    safety_identifier: Annotated[str | None, Meta(description="Taken and not used.")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="Taken and not used.")] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "24h"] | None, Meta(description="Taken and not used.")
    ] = None
    service_tier: Literal["auto", "default"] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonField = None
    guided_regex: RegexField = None
    guided_choice: ChoiceField = None
    guided_grammar: GrammarField = None

    @property
    def constrained_by(self) -> str:
        """The field that says what form the answer has; empty if none does."""
        constraint = constraint_of(self)
        return "" if constraint is None else constraint.field

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream tells the tokens so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def _sampling(self, **fields: Any) -> SamplingParams:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        given = {name: value for name in _PASSED_ON if (value := getattr(self, name)) is not None}
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        constraint = constraint_of(self)
        return SamplingParams(
            logit_bias=_token_keys(self.logit_bias or {}),
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            grammar=None if constraint is None else constraint.grammar,
            **(given | fields),
        )


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Annotated[
        int | None, Meta(description="Newer name of `max_tokens`.")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description="Only with `logprobs`."),
    ] = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Tools | None, Meta(description="Functions that the model may call.")] = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="Taken and not used.")
    ] = None
    functions: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None, Meta(description="See `tools`.")
    ] = None
    function_call: Annotated[None, Meta(description="See `tool_choice`.")] = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    tool_choice: Annotated[
        Choice | None,
        Meta(description="Whether it calls any, must, or must call one. Default: auto."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="Whether several calls may come. Default: true.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Meta(description="Variables of the model's chat template, such as `enable_thinking`."),
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
        Meta(description="How much to think, where the chat template has it; `none`: not at all."),
    ] = None
    max_thinking_tokens: Annotated[
        Annotated[int, Meta(ge=0, lt=2**31)] | None,
        Meta(description="So many tokens of thinking are followed by its end. Default: no limit."),
    ] = None

    def conversation(self) -> Conversation:
        """What is to be answered, and how.

        Raises:
            RequestError: fields contradict each other.
        """
        return conversation_of(
            self.messages,
            self.tools,
            self.tool_choice,
            parallel=self.parallel_tool_calls is not False,
            variables=self.chat_template_kwargs or {},
            effort=self.reasoning_effort,
            max_thinking_tokens=self.max_thinking_tokens,
        )

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


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    suffix: Literal[""] | None = None
    echo: Annotated[bool | None, Meta(description="Put the prompt before the completion.")] = None
    logprobs: Annotated[
        int | None,
        Meta(description="Alternatives for each token; with `echo`, for the prompt's tokens too."),
    ] = None

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            check_items(self.prompt, "prompt")

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
        prompts: Any = self.prompt
        if isinstance(prompts, str) or isinstance(next(iter(prompts), None), int):
            prompts = [prompts]
        if not prompts or not all(prompts):
            raise RequestError("prompt is empty; give at least one token", param="prompt")
        return prompts  # type: ignore[no-any-return]


class TokenizeRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(description="Only with `prompt`: whether to add BOS and the like. Default: true."),
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        Meta(description="Only with `messages`: whether to open the answer. Default: true."),
    ] = None


class DetokenizeRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class ReloadRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /admin/reload`: which model's files are to be loaded again."""

    model: str


class AdapterRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/adapters`: a LoRA adapter in a folder of the server, in PEFT's layout.

    `model` is what it is added to, where there are several.
    """

    name: Annotated[str, Meta(pattern=ADAPTER_NAME, max_length=100)]
    path: str
    model: str | None = None


def check_items(items: list[Any], param: str) -> None:
    """Raise RequestError unless the items are of one kind, and no more than of that kind are taken."""
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        raise RequestError(
            f"{param}: expected texts, token ids or lists of token ids, not a mixture", param=param
        )
    if kinds != {int} and len(items) > MAX_PROMPTS:
        raise RequestError(f"{param}: at most {MAX_PROMPTS} items are taken", param=param)


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, value in bias.items():
        if not _TOKEN_KEY.fullmatch(key):
            raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        if int(key) in by_id:
            raise RequestError(f"logit_bias names token {int(key)} twice", param="logit_bias")
        by_id[int(key)] = value
    return by_id


class TranslationRequest(Strict, frozen=True, kw_only=True):
    """``POST /v1/audio/translations``, beside the ``file``. A form's fields are text, and read as such."""

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    stream: bool = False
    track: Annotated[
        int | None,
        Meta(description="Which of the file's audio tracks, from 1; default: the file's default."),
    ] = None
    raw_format: Annotated[
        SampleType | None,
        Meta(description="Encoding of a file without a header, which `sample_rate` goes with."),
    ] = None
    sample_rate: Annotated[
        Annotated[int, Meta(ge=4_000, le=768_000)] | None,
        Meta(description="Of a file without a header, in Hz."),
    ] = None
    channels: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(description="Of a file without a header, interleaved; default: 1."),
    ] = None
    hotwords: Annotated[
        str, Meta(description="Names and terms that the decoder has in front of it all along.")
    ] = ""
    vad: Annotated[
        bool,
        Meta(description="Leave out what is no speech; false: transcribe all of the recording."),
    ] = True
    vad_threshold: Annotated[float | None, Meta(description="Probability of speech.")] = None
    vad_neg_threshold: float | None = None
    vad_min_speech_ms: int | None = None
    vad_min_silence_ms: int | None = None
    vad_pad_ms: int | None = None

    @property
    def raw(self) -> "RawPcm | None":
        """The format of a file without a header; None: its header has it.

        Raises:
            RequestError: a field is missing, or does not go with the others.
        """
        from galley.speech.sources import raw_pcm

        return raw_pcm(self.raw_format, self.sample_rate, self.channels)

    def _speech(self) -> "SpeechOptions | None":
        """How speech is found. Raises RequestError for values out of range, or without ``vad``."""
        from galley.speech.options import SpeechOptions

        names = ("threshold", "neg_threshold", "min_speech_ms", "min_silence_ms", "pad_ms")
        given = {name: v for name in names if (v := getattr(self, f"vad_{name}")) is not None}
        if not self.vad:
            for name in given:
                raise RequestError(f"vad_{name} goes with vad, which is false", param=f"vad_{name}")
            return None
        try:
            return SpeechOptions(**given)
        except RequestError as error:
            raise RequestError(f"vad_{error}", param=f"vad_{error.param}") from None

    def options(self) -> "TranscribeOptions":
        """What is wanted, as ``galley.speech`` has it.

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
        return TranscribeOptions(
            task="translate",
            prompt=self.prompt,
            hotwords=self.hotwords,
            speech=self._speech(),
            rules=rules,
        )

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """What has times in verbose_json."""
        return ("segment",)


class TranscriptionRequest(TranslationRequest, frozen=True, kw_only=True):
    """``POST /v1/audio/transcriptions``, beside the ``file``."""

    language: str | None = None
    chunking_strategy: Annotated[
        Literal["auto"], Meta(description="Taken and not used: recordings are cut at pauses.")
    ] = "auto"
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
