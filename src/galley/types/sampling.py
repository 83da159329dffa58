"""Sampling parameters: how the tokens of one request are chosen."""

import math
from typing import Final, Literal

import msgspec

from galley.errors import RequestError
from galley.types.sizes import MAX_COUNT

MAX_LOGPROBS: Final = 20
"""Maximum alternatives per token that ``logprobs`` may request (OpenAI's limit)."""

MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARS: Final = 1024
MAX_N: Final = 128
MAX_BEAMS: Final = 10

MAX_LOGIT_BIAS: Final = 1024


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grammar that a text must follow; see ``docs/operations/structured-output.md``.

    Attributes:
        kind: notation of ``source``. "compiled" is llguidance's own notation, which
            :func:`galley.grammar.check.check` makes of the others; an engine takes no other.
        source: a JSON schema, a regular expression, a JSON array of texts, or a grammar in Lark's notation
            or in GBNF; for the kind "chat", the result of :func:`galley.tools.grammar.grammar_of`.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "chat", "compiled"]
    source: str


class ThinkingBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limit of the thinking tokens in an output, after which the token that ends thinking is chosen.

    Attributes:
        end: the token that ends thinking.
        begin: sequence of tokens that begins it.
        begun: whether the prompt ends within the thinking.
    """

    max_tokens: int
    end: int
    begin: tuple[int, ...]
    begun: bool


def _finite(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(
            f"{name} must be between {low:g} and {high:g}, got {value!r}", param=name
        )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen for one request. Validated at construction.

    ``None`` in the first five fields means "the model's own default": the value in its
    ``generation_config.json``, else the neutral one (temperature 1, the rest off). Resolve with
    :meth:`resolved`.

    Attributes:
        temperature: 0 is greedy and exact.
        top_p: nucleus mass kept, in [0, 1]; 0 keeps only the likeliest token.
        top_k: candidates kept; 0 or -1 keeps all.
        min_p: keeps candidates with at least this share of the best one's probability.
        repetition_penalty: in [0.01, 100]; divides positive and multiplies negative logits of tokens that
            occur in the prompt or the output (CTRL, arXiv:1909.05858).
        presence_penalty, frequency_penalty: in [-2, 2], subtracted from the logits of tokens that occur in
            the output, once or per occurrence (OpenAI API).
        penalty_window: number of latest tokens that these penalties consider; -1: all, 0: none.
        logit_bias: token id -> value in [-100, 100] added to its logit.
        seed: 64-bit; the same seed gives the same text at any load. ``None`` draws one, and so does -1,
            which is converted to ``None``.
        n: independent choices for each prompt.
        max_tokens: ``None`` means the model's default, or the rest of the context.
        min_tokens: end-of-sequence, stop tokens and stop strings have no effect before this many tokens.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: token ids that end the text like an end-of-sequence token.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: ``None`` for none; k reports the chosen token and its k best alternatives.
        prompt_logprobs: the same for the prompt's tokens after the first.
        scores: report the log-probability of each chosen token among those that penalties and rules left,
            at temperature 1. Whisper's average log-probability is the mean of these.
        num_beams: above 1, a beam search with this many hypotheses instead of a choice at each token (see
            ``engine/tasks/beam_search.py``); needs temperature 0 and nothing that changes logits except a
            transcript's rules. The best hypothesis is returned at the end, in one Output; its ``scores``
            are defined like those of ``scores``.
        speculation: "auto" lets the engine verify draft tokens, as its setting specifies; "off" disables
            this. The text is the same.
        grammar: tokens that would violate it are not chosen, and the text ends with it at the latest.
        thinking: limit of the output's thinking tokens; None: no limit.
        length_penalty: a finished hypothesis is ranked by its log-probability divided by its length to this
            power.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = -1
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    scores: bool = False
    num_beams: int = 1
    length_penalty: float = 1.0
    speculation: Literal["auto", "off"] = "auto"
    grammar: Grammar | None = None
    thinking: ThinkingBudget | None = None

    def __post_init__(self) -> None:
        self._coerce_sequences()
        self._check_types()
        if self.temperature is not None:
            _finite("temperature", self.temperature, 0.0, 100.0)
        if self.top_p is not None and not 0.0 <= self.top_p <= 1.0:
            raise RequestError(f"top_p must be in [0, 1], got {self.top_p!r}", param="top_p")
        if self.top_k is not None and not -1 <= self.top_k <= MAX_COUNT:
            raise RequestError(
                f"top_k must be between -1 and {MAX_COUNT}, got {self.top_k}", param="top_k"
            )
        if self.min_p is not None:
            _finite("min_p", self.min_p, 0.0, 1.0)
        if self.repetition_penalty is not None:
            _finite("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _finite("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _finite("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not -1 <= self.penalty_window <= MAX_COUNT:
            raise RequestError(
                f"penalty_window must be between -1 and {MAX_COUNT}, got {self.penalty_window}",
                param="penalty_window",
            )
        _finite("length_penalty", self.length_penalty, -10.0, 10.0)
        self._check_seed()
        self._check_counts()
        self._check_stops()
        self._check_grammar()

    def _coerce_sequences(self) -> None:
        """Convert a single stop string to a tuple of one, and lists to tuples."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        msgspec.structs.force_setattr(self, "stop", stop)
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))

    def _check_types(self) -> None:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        try:
            msgspec.convert(fields, _PlainParams, strict=True)
        except msgspec.ValidationError as error:
            # "Expected `int`, got `float` - at `$.n`"
            name = str(error).rpartition("$.")[2].partition("`")[0].partition("[")[0]
            raise RequestError(f"{name}: {error}", param=name) from None

    def _check_seed(self) -> None:
        if self.seed == -1:
            msgspec.structs.force_setattr(self, "seed", None)
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed must fit 64 bits, got {self.seed}", param="seed")

    def _check_counts(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS}",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise RequestError(f"logit_bias has token {token}", param="logit_bias")
            _finite("logit_bias", bias, -100.0, 100.0)
        if not 1 <= self.n <= MAX_N:
            raise RequestError(f"n must be between 1 and {MAX_N}, got {self.n}", param="n")
        if not 1 <= self.num_beams <= MAX_BEAMS:
            raise RequestError(
                f"num_beams must be between 1 and {MAX_BEAMS}, got {self.num_beams}",
                param="num_beams",
            )
        if self.max_tokens is not None and not 0 <= self.max_tokens <= MAX_COUNT:
            raise RequestError(
                f"max_tokens must be between 0 and {MAX_COUNT}, got {self.max_tokens}",
                param="max_tokens",
            )
        most = MAX_COUNT if self.max_tokens is None else self.max_tokens
        if not 0 <= self.min_tokens <= most:
            raise RequestError(
                f"min_tokens must be between 0 and max_tokens, got {self.min_tokens}",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            k = getattr(self, name)
            if k is not None and not 0 <= k <= MAX_LOGPROBS:
                raise RequestError(
                    f"{name} must be between 0 and {MAX_LOGPROBS}, got {k}", param=name
                )

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS}", param="stop"
            )
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_CHARS:
                raise RequestError(
                    f"each stop string needs 1 to {MAX_STOP_CHARS} characters, got {len(text)}",
                    param="stop",
                )
        if len(self.stop_token_ids) > MAX_LOGIT_BIAS or any(t < 0 for t in self.stop_token_ids):
            raise RequestError(
                f"stop_token_ids needs at most {MAX_LOGIT_BIAS} non-negative ids",
                param="stop_token_ids",
            )

    def _check_grammar(self) -> None:
        """Check that only the grammar decides where the text ends, and that no beam search is requested.

        A beam search would need a grammar for each hypothesis.
        """
        if self.grammar is None:
            return
        for name in ("num_beams", "min_tokens", "ignore_eos"):
            if getattr(self, name) not in (None, False, 0) and (name, self.num_beams) != (
                "num_beams",
                1,
            ):
                raise RequestError(
                    f"{name} and a grammar exclude each other, because the grammar determines where the "
                    "text ends",
                    param=name,
                )

    def resolved(self, defaults: "SamplingDefaults") -> "SamplingParams":
        """Return the parameters with every ``None`` that stands for a model default replaced."""
        changes: dict[str, float | int] = {}
        for name in defaults.__struct_fields__:
            # The room for output tokens is not known here.
            if name != "max_tokens" and getattr(self, name) is None:
                changes[name] = getattr(defaults, name)
        return msgspec.structs.replace(self, **changes) if changes else self


_PlainParams = msgspec.defstruct(
    "_PlainParams", [(field.name, field.type) for field in msgspec.structs.fields(SamplingParams)]
)
"""The fields' types without the checks, which call it."""


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """A model's default sampling, from ``generation_config.json`` or the settings.

    Attributes:
        max_tokens: maximum tokens of an output, limited by the context; None: the rest of the context.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
