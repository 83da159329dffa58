"""The output of an engine for a request."""

from typing import Literal, TypeAlias

import msgspec

from galley.types.audio import Alignment
from galley.types.tensors import Tensor
from galley.types.transfers import KVPeer

FinishReason = Literal["stop", "length", "abort", "error"]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability (nats, before temperature and penalties) of a token and the best alternatives.

    ``top`` is sorted, best first; the token itself is in it only if it is among the best.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Times in seconds since the request's arrival, on the engine's clock, at the Output that carries them.

    Attributes:
        engine_seconds: the request's share of the engine's time so far; see ``engine/step_meter.py``.
        proposed, accepted: draft tokens verified so far, and those of them that were accepted.
    """

    queued: float = 0.0
    first_token: float = 0.0
    total: float = 0.0
    preemptions: int = 0
    engine_seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0


class Tokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """The tokens that a step adds to a text or a transcript.

    Attributes:
        tokens: new since the last Output. A stop token is the last of them.
        logprobs: one for each of ``tokens``, if requested.
        prompt_logprobs: one for each prompt token after the first; with the first Output, if requested.
        scores: log-probability of each of ``tokens`` among those that could be chosen, if requested.
        no_speech_prob: with the first Output, if requested.
    """

    tokens: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    scores: list[float] | None = None
    no_speech_prob: float | None = None


class Vector(msgspec.Struct, frozen=True, tag="vector"):
    """The vector of a text or the score of a pair, in the request's only Output.

    Attributes:
        data: float32 in this machine's byte order; a single number if it is a score.
    """

    data: bytes


class Tensors(msgspec.Struct, frozen=True, tag="tensors"):
    """The outputs computed from tensors, in the request's only Output."""

    outputs: tuple[Tensor, ...]


class Audio(msgspec.Struct, frozen=True, tag="audio"):
    """Speech that a step adds to a spoken text.

    Attributes:
        data: new samples since the last Output: 16-bit integers in little-endian order, mono, at the
            model's :attr:`~galley.types.model_info.VoiceInfo.sample_rate`.
    """

    data: bytes

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return len(self.data) // 2


Result: TypeAlias = Tokens | Vector | Alignment | Tensors | Audio
"""The result of a request, by its kind. A new kind is a tagged struct that is added to this union."""

_NO_TOKENS = Tokens()


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of one engine step for one request: an envelope, and a result of the request's kind.

    Attributes:
        request_id: id of the request.
        result: the result; None if there is none, as for a request that failed.
        cached_tokens: prompt tokens that the prefix cache supplied.
        finish_reason: set in the last Output of a request.
        error: description of the failure, where ``finish_reason`` is "error".
        refused: whether the request is at fault, not the engine.
        timing: set in the first and the last Output, and in each that may be the last because the
            request has stop strings.
        kv_peer: with the last Output of a request whose blocks are for a peer, where they are.
    """

    request_id: str
    result: Result | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    refused: bool = False
    timing: Timing | None = None
    kv_peer: KVPeer | None = None

    @property
    def generated(self) -> Tokens:
        """Return the result of a request for tokens; empty Tokens if the result is of another kind."""
        return self.result if isinstance(self.result, Tokens) else _NO_TOKENS

    @property
    def tokens(self) -> list[int]:
        """New tokens of a request that generates tokens."""
        result = self.result
        return result.tokens if isinstance(result, Tokens) else []
