"""Request fields common to chat completions and completions.

Unknown fields are refused by name. Types are strict: ``true`` is not an integer and ``"1"`` is
not a number. Ranges are checked by :class:`galley.types.SamplingParams`, the only place that
knows them.

Fields of OpenAI's API that are accepted and have no effect, because nothing here could depend on
them: ``user``, ``safety_identifier``, ``metadata``, ``store`` (nothing is stored),
``service_tier`` (only ``auto`` and ``default``: there is only one tier), and, in assistant messages
sent back as they were received, ``null`` for fields that this server never fills (``refusal``,
``function_call``, ``audio``, ``annotations``). Fields of unsupported features are accepted only
with values that request nothing.
"""

import re
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.common.prefixes import (
    PromptCacheKey,
    PromptCacheOptions,
    PromptCacheRetention,
    retained_seconds,
)
from galley.protocols.common.structured_output import (
    ChoiceField,
    GrammarField,
    JsonField,
    RegexField,
    StructuredOutputs,
    constraint_of,
)
from galley.protocols.openai.inputs import Texts, TokenIds
from galley.protocols.openai.transfers import KVTransferParams
from galley.types import MAX_LOGIT_BIAS, SamplingParams

MAX_METADATA: Final = 64

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
"""Fields with the names and meanings of :class:`SamplingParams`."""

_TOKEN_KEY: Final = re.compile(r"[0-9]{1,10}")


class StreamOptions(Strict, frozen=True, kw_only=True):
    """Options of a streamed answer."""

    include_usage: Annotated[
        bool | None, Meta(description="Send a last chunk with the usage and no choices.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="Also send the usage so far with each other chunk.")
    ] = None


class GenerationRequest(Strict, frozen=True, kw_only=True):
    """The fields that chat and plain completions share."""

    model: Annotated[
        str | None,
        Meta(
            description="The served model's name, as in `GET /v1/models`. Default: the only model that "
            "generates text."
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
        Meta(description="Token id, as a string -> bias in [-100, 100]."),
    ] = None
    seed: Annotated[
        int | None,
        Meta(description="64 bits; the same seed gives the same text. -1: drawn at random."),
    ] = None
    n: Annotated[int | None, Meta(description="Number of choices for each prompt.")] = None
    best_of: Annotated[
        Literal[1] | None, Meta(description="Accepted and ignored: `n` choices are generated.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Meta(
            description="Default: 16 for completions, as in OpenAI's API; for chat, the model's "
            "`sampling_defaults`, or the rest of the context."
        ),
    ] = None
    min_tokens: Annotated[
        int | None, Meta(description="The text does not end before this many tokens.")
    ] = None
    stop: Annotated[
        str | Texts | None, Meta(description="Strings that end the text; they are not part of it.")
    ] = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Meta(description="Only with `stream`.")] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-100, le=100)] | None,
        Meta(description="Lower values are served first; waiting compensates for it."),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Cached prefixes are shared between equal salts only."),
    ] = None
    speculation: Annotated[
        Literal["auto", "off"] | None,
        Meta(description="Whether to use speculative decoding; the text is the same."),
    ] = None
    user: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    metadata: Annotated[
        Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None,
        Meta(description="Accepted and ignored."),
    ] = None
    store: Annotated[bool | None, Meta(description="Accepted and ignored: nothing is stored.")] = (
        None
    )
    safety_identifier: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    prompt_cache_key: PromptCacheKey = None
    prompt_cache_retention: PromptCacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None
    service_tier: Literal["auto", "default"] | None = None
    kv_transfer_params: Annotated[
        KVTransferParams | None,
        Meta(description="Prefill and decode apart: where the prompt's keys and values are."),
    ] = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonField = None
    guided_regex: RegexField = None
    guided_choice: ChoiceField = None
    guided_grammar: GrammarField = None

    @property
    def constrained_by(self) -> str:
        """Name of the field that constrains the answer's form; empty if none does."""
        constraint = constraint_of(self)
        return "" if constraint is None else constraint.field

    @property
    def keep_seconds(self) -> float:
        """How long the prefix is to stay cached after the request."""
        return retained_seconds(
            self.prompt_cache_key, self.prompt_cache_retention, self.prompt_cache_options
        )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream reports the tokens so far."""
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


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, value in bias.items():
        if not _TOKEN_KEY.fullmatch(key):
            raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        if int(key) in by_id:
            raise RequestError(f"logit_bias has token {int(key)} twice", param="logit_bias")
        by_id[int(key)] = value
    return by_id
