"""One request inside the engine."""

from dataclasses import dataclass, field

from galley.engine.sampler import TokenSampler
from galley.types import EngineRequest, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """``computed`` tokens have keys and values; they catch up with ``known`` ones. There are no phases.

    Attributes:
        tokens: prompt, then output; owned by this sequence.
        order: place in every queue; smaller is sooner (see ``scheduler.py``).
        number: that of its arrival, by which equal orders are told apart; the scheduler's.
        cached: prompt tokens that the prefix cache supplied when it first ran.
        arrival, started, first_token: seconds on the engine's clock; 0 until it happens.
        scored: prompt log-probabilities so far, when they were asked for.
        stop_ids: tokens that end it.
    """

    request: EngineRequest
    sampler: TokenSampler
    order: int
    arrival: float
    number: int = 0
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    started: float = 0.0
    first_token: float = 0.0
    preemptions: int = 0
    scored: list[TokenLogprob] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.output]

    def __lt__(self, other: "Sequence") -> bool:
        """Whether this one's turn comes first."""
        return (self.order, self.number) < (other.order, other.number)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Known tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Output tokens so far, those of an earlier engine included."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def scores_prompt(self) -> bool:
        """The caller wants log-probabilities of the prompt, so all its rows must be computed."""
        return self.request.sampling.prompt_logprobs is not None

    def rows_to_score(self, count: int) -> int:
        """How many of its next ``count`` rows, the last ones, are wanted to score the prompt.

        Row i scores token i + 1. Rows that were scored before a preemption are not wanted again.
        """
        if not self.scores_prompt:
            return 0
        first = max(self.computed, len(self.scored))
        if first >= len(self.request.prompt) - 1:
            return 0
        return max(0, self.computed + count - first)
