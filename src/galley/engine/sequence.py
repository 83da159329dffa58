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
        cached: prompt tokens that the prefix cache supplied when it first ran.
        arrival, started, first_token: seconds on the engine's clock; 0 until it happens.
        scored: prompt log-probabilities so far, when they were asked for.
    """

    request: EngineRequest
    sampler: TokenSampler
    order: int
    arrival: float
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    started: float = 0.0
    first_token: float = 0.0
    preemptions: int = 0
    scored: list[TokenLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.output]

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
