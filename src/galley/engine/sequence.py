"""One request inside the engine."""

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from galley.audio import Alignment, EncoderInput
from galley.engine.beams import BeamSearch
from galley.engine.sampler import Adjuster, how_to_draw
from galley.types import EngineRequest, TokenLogprob

MAX_FEATURE: Final = 1e4
"""Beyond any log-mel value; what is greater, or no number, could leave infinities in the KV cache."""


@dataclass(frozen=True, slots=True)
class Window:
    """A request's audio as the engine has it.

    Attributes:
        features: [frames, mels].
        rows: how many positions it takes in the KV cache.
        digest: equal for equal features.
    """

    features: npt.NDArray[np.float32]
    rows: int
    digest: bytes

    @classmethod
    def of(cls, window: EncoderInput, rows: int) -> Self:
        """``rows`` is how many the encoder makes of it."""
        features = np.frombuffer(window.data, dtype="<f4").reshape(window.frames, window.mels)
        return cls(features, rows, blake2b(window.data, digest_size=16).digest())

    @property
    def usable(self) -> bool:
        """All features are numbers of a sane size."""
        return bool((np.abs(self.features) <= MAX_FEATURE).all())


@dataclass(slots=True, eq=False)
class Sequence:
    """``computed`` tokens have keys and values; they catch up with ``known`` ones. There are no phases.

    Attributes:
        id: the request's.
        tokens: prompt, then output; owned by this sequence.
        most: how many tokens it may ever have.
        plain: it takes the logits as they are, wants to know its next token alone, and the engine says when
            it ends.
        how: it draws from them.
        blocks: its table in the KV cache, which grows there; a beam search has more of them.
        settled: until so many are computed, neither :meth:`KVCache.grow` nor ``commit`` would do anything.
        adjuster: what it changes about them before; None if nothing.
        order: place in every queue; smaller is sooner (see ``scheduler.py``).
        number: that of its arrival, by which equal orders are told apart; the scheduler's.
        cached: prompt tokens that the prefix cache supplied when it first ran.
        arrival, started, first_token: seconds on the engine's clock; 0 until it happens.
        scored: prompt log-probabilities so far, when they were asked for.
        stop_ids: tokens that end it.
        window: its audio; None for a text model.
        no_speech_prob: once it is computed, when it was asked for.
        attention: where the alignment heads look at the computed tokens, when that was asked for; each
            [tokens, heads, rows].
        beams: its search, if it is one; ``tokens`` are then those of the best running hypothesis.
    """

    request: EngineRequest
    order: int
    arrival: float
    id: str = field(init=False)
    tokens: list[int] = field(init=False)
    most: int = field(init=False)
    plain: bool = field(init=False)
    how: bytes = field(init=False)
    adjuster: Adjuster | None = field(init=False)
    blocks: "array[int]" = field(init=False)
    number: int = 0
    computed: int = 0
    settled: int = 0
    cached: int = 0
    started: float = 0.0
    first_token: float = 0.0
    preemptions: int = 0
    scored: list[TokenLogprob] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()
    window: Window | None = None
    no_speech_prob: float | None = None
    beams: BeamSearch | None = None
    attention: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def __post_init__(self) -> None:
        request, params = self.request, self.request.sampling
        assert params.max_tokens is not None
        self.id = request.id
        self.tokens = [*request.prompt, *request.output]
        self.most = len(request.prompt) + params.max_tokens
        self.how = how_to_draw(params)
        self.adjuster = Adjuster.of(params, request.prompt, request.output, self.stop_ids)
        self.plain = (
            self.adjuster is None
            and params.prompt_logprobs is None
            and params.no_speech is None
            and params.num_beams == 1
            and params.logprobs is None
            and not params.scores
            and not params.alignment
            and not params.stop
        )
        self.restart()

    def restart(self) -> None:
        """Its keys and values are gone. A beam search begins anew: what it found is not output yet."""
        self.computed = self.settled = 0
        self.attention.clear()
        if self.request.sampling.num_beams > 1:
            self.tokens = list(self.request.prompt)
            self.beams = BeamSearch(self.request.sampling, self.stop_ids)

    def __lt__(self, other: "Sequence") -> bool:
        """Whether this one's turn comes first."""
        return (self.order, self.number) < (other.order, other.number)

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Known tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    def is_behind(self) -> bool:
        """It has more to catch up with than its last token."""
        return len(self.tokens) - self.computed > 1

    @property
    def generated(self) -> int:
        """Output tokens so far, those of an earlier engine included."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def width(self) -> int:
        """Hypotheses that advance together, each with blocks of its own."""
        return 1 if self.beams is None else len(self.beams.running)

    @property
    def aligns(self) -> bool:
        """It wants to know where the alignment heads look, and no logits."""
        return self.request.sampling.alignment

    @property
    def alignment(self) -> Alignment | None:
        """What was found, if it was asked for."""
        if not self.aligns:
            return None
        _, heads, rows = self.attention[0].shape
        data = b"".join(np.asarray(part, "<f4").tobytes() for part in self.attention)
        return Alignment(tokens=self.computed, heads=heads, rows=rows, data=data)

    @property
    def shares(self) -> bool:
        """Others may use its blocks: all layers are computed, and of tokens that stay."""
        return self.plain or (not self.aligns and (self.beams is None or not self.generated))

    @property
    def scores_prompt(self) -> bool:
        """The caller wants log-probabilities of the prompt, so all its rows must be computed."""
        return self.request.sampling.prompt_logprobs is not None

    @property
    def probes(self) -> bool:
        """The probability of no speech is wanted and not there yet."""
        return self.request.sampling.no_speech is not None and self.no_speech_prob is None

    @property
    def reusable(self) -> int:
        """How many leading tokens the prefix cache may supply: no row whose logits are wanted."""
        if self.scores_prompt or self.aligns:
            return 0
        if self.probes:
            assert self.request.sampling.no_speech is not None
            return self.request.sampling.no_speech[0]
        return self.known - 1

    def rows_to_score(self, count: int) -> int:
        """How many of its next ``count`` rows, the last ones, are wanted for what they say of the prompt.

        Row i scores token i + 1. Rows that were scored before a preemption are not wanted again.
        """
        if not (self.scores_prompt or self.probes):
            return 0
        first = self.known
        if self.scores_prompt and len(self.scored) < len(self.request.prompt) - 1:
            first = len(self.scored)
        if self.probes:
            assert self.request.sampling.no_speech is not None
            first = min(first, self.request.sampling.no_speech[0])
        return max(0, self.computed + count - max(first, self.computed))
