"""What is asked of an engine: an envelope, and a payload for each kind of request."""

from typing import Final, Literal, Self, TypeAlias

import msgspec

from galley.types.audio import NO_RULES, EncoderInput, SpeechRules
from galley.types.sampling import SamplingParams

LIVE_PRIORITY: Final = -1000
"""Of audio that is spoken now: before all that an API request may ask for."""

Task = Literal["generate", "score", "transcribe", "translate", "align", "embed", "rerank"]
"""What a model can be asked for: to continue a text, to tell the log-probabilities of a given text's
tokens, to write down speech in its language or in English, to time the tokens of a given transcript, to
make a vector of a text, and to score how well a text answers another."""


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter that a request may name.

    Attributes:
        name: in the API.
        path: of its folder, in PEFT's layout.
        digest: of the state of its files: adapters of the same name never share keys and values.
    """

    name: str
    path: str
    digest: str


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What admission and recovery need to know of any kind of request."""

    @property
    def reads(self) -> int:
        """Tokens, or what else the kind counts, that are computed before the first output."""
        return 0

    @property
    def writes(self) -> int:
        """Most output tokens."""
        return 0

    def resumed(self, tokens: list[int], *, answered: bool) -> Self:
        """What a new engine needs, after the last one died.

        Args:
            tokens: delivered so far.
            answered: an Output has come; what comes with the first one is not computed twice.
        """
        return self


class Generate(Payload, frozen=True, kw_only=True, tag="generate"):
    """One sequence to continue. ``n`` choices are n of these.

    Attributes:
        prompt: token ids, at least one.
        sampling: resolved; ``seed`` and ``max_tokens`` are set; ``stop`` strings are for others to find.
        output: tokens already delivered, when a request is resubmitted to a new engine.
    """

    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = []

    @property
    def rules(self) -> SpeechRules:
        """None: only transcripts have any."""
        return NO_RULES

    @property
    def reads(self) -> int:
        """The prompt."""
        return len(self.prompt)

    @property
    def writes(self) -> int:
        """``max_tokens``."""
        return self.sampling.max_tokens or 0

    def resumed(self, tokens: list[int], *, answered: bool) -> Self:
        """With the tokens that were delivered as its output."""
        sampling = self.sampling
        if answered:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(self, output=tokens, sampling=sampling)


class Transcribe(Payload, frozen=True, kw_only=True, tag="transcribe"):
    """Audio to write down, or to tell the language of.

    Attributes:
        prompt: token ids, at least one.
        encoder_input: the audio.
        sampling, output: as of :class:`Generate`.
        rules: which tokens may be chosen.
    """

    prompt: list[int]
    encoder_input: EncoderInput
    sampling: SamplingParams
    rules: SpeechRules = NO_RULES
    output: list[int] = []

    @property
    def reads(self) -> int:
        """The prompt."""
        return len(self.prompt)

    @property
    def writes(self) -> int:
        """``max_tokens``."""
        return self.sampling.max_tokens or 0

    def resumed(self, tokens: list[int], *, answered: bool) -> Self:
        """With the tokens that were delivered as its output."""
        sampling, rules = self.sampling, self.rules
        if answered:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
            rules = msgspec.structs.replace(rules, no_speech=None)
        return msgspec.structs.replace(self, output=tokens, sampling=sampling, rules=rules)


class Align(Payload, frozen=True, kw_only=True, tag="align"):
    """Where the alignment heads of a speech model look at each token of a given text.

    Attributes:
        prompt: token ids of the text, those that begin a transcript included.
        encoder_input: the audio.
    """

    prompt: list[int]
    encoder_input: EncoderInput

    @property
    def reads(self) -> int:
        """The prompt."""
        return len(self.prompt)


class Embed(Payload, frozen=True, kw_only=True, tag="embed"):
    """The vector of a text, or the score of a pair of texts.

    Attributes:
        prompt: token ids of the text, or of both texts of a pair; at least one.
        second: the first token of the pair's second text, whose tokens are of type 1; 0: all are of type 0.
        dimensions: of the vector; 0: as many as the checkpoint says.
    """

    prompt: list[int]
    second: int = 0
    dimensions: int = 0

    @property
    def reads(self) -> int:
        """All of the text."""
        return len(self.prompt)


Written: TypeAlias = Generate | Transcribe
"""What brings tokens, drawn one after another."""

Decoded: TypeAlias = Written | Align
"""What a decoder runs for: a sequence of tokens with keys and values."""

AnyPayload: TypeAlias = Generate | Transcribe | Align | Embed
"""A new kind of request is a tagged struct above, and its name here."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of a request: who it is of and when its turn comes, whatever the payload.

    Attributes:
        id: unique among live requests.
        payload: what is asked.
        priority: lower is sooner; see ``engine/scheduler.py`` for how waiting makes up for it.
        cache_salt: requests share cached prefixes only with the same salt (tenant).
        tenant: who asks; tenants that compete for the engine share its token budget by ``weight``.
        weight: of the tenant, positive.
        tenant_priority: of the tenant among tenants, lower is sooner; ``priority`` orders a tenant's own.
        adapter: that is added to the model; None: the model alone.
    """

    id: str
    payload: AnyPayload
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    tenant_priority: int = 0
    adapter: Adapter | None = None
