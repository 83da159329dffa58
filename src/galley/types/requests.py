"""A request to an engine: an envelope, and a payload for each kind of request."""

from typing import Final, Literal, Self, TypeAlias

import msgspec

from galley.types.audio import NO_RULES, EncoderInput, SpeechRules
from galley.types.sampling import SamplingParams
from galley.types.tensors import Tensor
from galley.types.transfers import KVPeer

LIVE_PRIORITY: Final = -1000
"""Priority of live audio, before every priority that an API request can set."""

Task = Literal[
    "generate",
    "score",
    "transcribe",
    "translate",
    "align",
    "embed",
    "rerank",
    "predict",
    "speak",
]
"""Tasks of a model: to continue a text, to report the log-probabilities of a given text's tokens, to
transcribe speech in its language or translate it into English, to time the tokens of a given transcript, to
embed a text as a vector, to score how well a text answers another, to compute tensors from tensors, and to
speak a text."""


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter that a request may name.

    Attributes:
        name: its name in the API.
        path: path of its folder, in PEFT's layout.
        digest: digest of the state of its files: different adapters of the same name never share keys and
            values.
    """

    name: str
    path: str
    digest: str


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties of every kind of request that admission and recovery need."""

    @property
    def reads(self) -> int:
        """Return the tokens, or other units of the kind, that are computed before the first output."""
        return 0

    @property
    def writes(self) -> int:
        """Return the maximum number of output tokens."""
        return 0

    def resumed(self, tokens: list[int], *, answered: bool, samples: int = 0) -> Self:
        """Return the payload to submit to a new engine after the last one died.

        Args:
            tokens: tokens delivered so far.
            samples: samples of audio delivered so far.
            answered: whether an Output has arrived; the contents of the first one are not computed again.
        """
        return self


class Generate(Payload, frozen=True, kw_only=True, tag="generate"):
    """One sequence to continue. ``n`` choices are n of these.

    Attributes:
        prompt: token ids, at least one.
        sampling: resolved; ``seed`` and ``max_tokens`` are set. The engine ignores ``stop`` strings, which
            :mod:`galley.text.stream` finds.
        output: tokens already delivered, when a request is resubmitted to a new engine.
    """

    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = []

    @property
    def rules(self) -> SpeechRules:
        """Return the empty rules: only transcripts have any."""
        return NO_RULES

    @property
    def reads(self) -> int:
        """Return the number of prompt tokens."""
        return len(self.prompt)

    @property
    def writes(self) -> int:
        """Return ``max_tokens``."""
        return self.sampling.max_tokens or 0

    def resumed(self, tokens: list[int], *, answered: bool, samples: int = 0) -> Self:
        """Return the payload with the delivered tokens added to its output."""
        sampling = self.sampling
        if answered:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(self, output=[*self.output, *tokens], sampling=sampling)


class Transcribe(Payload, frozen=True, kw_only=True, tag="transcribe"):
    """Audio to transcribe, or whose language is to be detected.

    Attributes:
        prompt: token ids, at least one.
        encoder_input: the audio.
        sampling, output: as for :class:`Generate`.
        rules: restrictions on the tokens that may be chosen.
    """

    prompt: list[int]
    encoder_input: EncoderInput
    sampling: SamplingParams
    rules: SpeechRules = NO_RULES
    output: list[int] = []

    @property
    def reads(self) -> int:
        """Return the number of prompt tokens."""
        return len(self.prompt)

    @property
    def writes(self) -> int:
        """Return ``max_tokens``."""
        return self.sampling.max_tokens or 0

    def resumed(self, tokens: list[int], *, answered: bool, samples: int = 0) -> Self:
        """Return the payload with the delivered tokens added to its output."""
        sampling, rules = self.sampling, self.rules
        if answered:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
            rules = msgspec.structs.replace(rules, no_speech=None)
        return msgspec.structs.replace(
            self, output=[*self.output, *tokens], sampling=sampling, rules=rules
        )


class Align(Payload, frozen=True, kw_only=True, tag="align"):
    """A text to align with audio by the attention of a speech model's alignment heads to each token.

    Attributes:
        prompt: token ids of the text, including those that begin a transcript.
        encoder_input: the audio.
    """

    prompt: list[int]
    encoder_input: EncoderInput

    @property
    def reads(self) -> int:
        """Return the number of prompt tokens."""
        return len(self.prompt)


class Embed(Payload, frozen=True, kw_only=True, tag="embed"):
    """A text to embed as a vector, or a pair of texts to score.

    Attributes:
        prompt: token ids of the text, or of both texts of a pair; at least one.
        second: the first token of the pair's second text, whose tokens are of type 1; 0: all are of type 0.
        dimensions: length of the vector; 0: the checkpoint's default.
    """

    prompt: list[int]
    second: int = 0
    dimensions: int = 0

    @property
    def reads(self) -> int:
        """Return the number of tokens of the whole text."""
        return len(self.prompt)


class Predict(Payload, frozen=True, kw_only=True, tag="predict"):
    """Tensors to compute others from.

    Attributes:
        inputs: named tensors, as the model's :class:`~galley.types.model_info.TensorInfo` requires them.
        outputs: names of the outputs to return, in this order; empty: all.
        rows: length of the batch axis; 1 for a model without one.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    rows: int = 1

    @property
    def reads(self) -> int:
        """Return the number of rows."""
        return self.rows


class Speak(Payload, frozen=True, kw_only=True, tag="speak"):
    """A sentence or clause to speak; a text is several of these.

    Attributes:
        text: what to say, with abbreviations and the like written out.
        voice: one of the model's :attr:`~galley.types.model_info.VoiceInfo.voices`.
        speed: 1: the voice's own pace; 2: twice as fast.
        ahead: seconds of audio that the listener has yet to hear of what came before.
        seed: of the voice's variation: a resubmitted request is spoken as it began.
        samples: number of samples that have been delivered, when a request is resubmitted to a new engine.
    """

    text: str
    voice: str
    speed: float = 1.0
    ahead: float = 0.0
    seed: int = 0
    samples: int = 0

    @property
    def reads(self) -> int:
        """Return the number of characters."""
        return len(self.text)

    def resumed(self, tokens: list[int], *, answered: bool, samples: int = 0) -> Self:
        """Return the payload with the samples to leave out, in addition to those of before."""
        return msgspec.structs.replace(self, samples=self.samples + samples)


Written: TypeAlias = Generate | Transcribe
"""Payloads that produce tokens, sampled one after another."""

Decoded: TypeAlias = Written | Align
"""Payloads that a decoder runs for: a sequence of tokens with keys and values."""

AnyPayload: TypeAlias = Generate | Transcribe | Align | Embed | Predict | Speak
"""Any payload. A new kind of request is a tagged struct above that is added to this union."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of a request: who sent it and when it is scheduled, whatever the payload.

    Attributes:
        id: unique among live requests.
        payload: the work that is requested.
        priority: lower is sooner; see ``engine/scheduler.py`` for how waiting offsets it.
        cache_salt: requests share cached prefixes only with the same salt (tenant).
        tenant: who sent the request; tenants that compete share the engine's token budget by ``weight``.
        weight: weight of the tenant, positive.
        tenant_priority: of the tenant among tenants, lower is sooner; ``priority`` orders a tenant's own.
        adapter: LoRA adapter that is added to the model; None: the model alone.
        keep_seconds: how long its blocks stay in the prefix cache while others are evicted first.
        release: the release of the model that has to answer; empty: any.
        offered: whether a peer will fetch the blocks of its prompt: its last Output says where.
        kv_from: a peer that has blocks of its prompt.
    """

    id: str
    payload: AnyPayload
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    tenant_priority: int = 0
    adapter: Adapter | None = None
    keep_seconds: float = 0.0
    release: str = ""
    offered: bool = False
    kv_from: KVPeer | None = None
