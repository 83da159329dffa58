"""One request inside the engine."""

from array import array
from collections.abc import Collection
from dataclasses import InitVar, dataclass, field

from galley.engine.block_hashes import adapter_hash, salt_hash
from galley.engine.encoder_cache import EncoderFeatures
from galley.engine.tasks import Task, task_of
from galley.grammar.matcher import GrammarMatcher
from galley.speculation.speculator import Guesser
from galley.types import Align, Decoded, EngineRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """``computed`` tokens have keys and values; they catch up with ``known`` ones. There are no phases.

        tokens    t0 t1 t2 ... t(computed-1) | t(computed) ... t(known-1) | guesses of a step
        blocks    one entry for each 16 positions, in each KV group

    Attributes:
        request: what it is of.
        payload, id: the request's.
        prompt: the payload's.
        tokens: prompt, then output; owned by the sequence.
        task: what is wanted of its rows.
        tables: its block table in each KV group, which grow in place; those of the first hypothesis of
            several.
        settled: the scheduler asks the KV cache for nothing until so many tokens are computed: no block is
            needed, can be shared or leaves a window before.
        order: place in every queue; smaller is sooner (see ``scheduler.py``).
        number: that of its arrival, by which equal orders are told apart; the scheduler's.
        cached: prompt tokens that the prefix cache supplied when the sequence first ran.
        arrival, started, first_token: seconds on the engine's clock; 0 until it happens.
        timed: each of its Outputs may be the last one (because of stop strings) and carries a timing.
        adapter: the slot of its LoRA adapter; -1 for none.
        features: its encoder input; None for a text model.
        grammar: where its output stands in the request's grammar, for its task.
        engine_seconds: its share of the engine's time so far.
        forks: set by a task whose hypotheses have been replaced: for each new one the place of the old
            one whose blocks it goes on from.
        guesser: guesses its next tokens; None if nobody does.
    """

    request: EngineRequest
    order: int
    arrival: float
    stop_ids: Collection[int] = ()
    features: EncoderFeatures | None = None
    grammar: InitVar[GrammarMatcher | None] = None
    adapter: int = -1
    payload: Decoded = field(init=False)
    id: str = field(init=False)
    prompt: list[int] = field(init=False)
    tokens: list[int] = field(init=False)
    task: Task = field(init=False)
    root: bytes = field(init=False)
    timed: bool = field(init=False)
    tables: "tuple[array[int], ...]" = ()
    number: int = 0
    computed: int = 0
    settled: int = 0
    cached: int = 0
    started: float = 0.0
    first_token: float = 0.0
    preemptions: int = 0
    engine_seconds: float = 0.0
    forks: list[int] | None = None
    guesser: Guesser | None = None

    def __post_init__(self, grammar: GrammarMatcher | None) -> None:
        request, payload = self.request, self.request.payload
        assert isinstance(payload, Decoded), request.id
        self.payload = payload
        self.id = request.id
        self.prompt = payload.prompt
        written = None if isinstance(payload, Align) else payload
        self.tokens = [*payload.prompt, *(written.output if written else ())]
        self.task = task_of(payload, self.stop_ids, grammar)
        self.timed = bool(written and written.sampling.stop)
        self.root = self.features.root if self.features else salt_hash(request.cache_salt)
        if request.adapter is not None:
            self.root = adapter_hash(self.root, request.adapter.digest)
        self.restart()

    def restart(self) -> None:
        """Its keys and values are gone."""
        self.computed = self.settled = 0
        self.task.restart(self)

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
        return len(self.tokens) - len(self.prompt)
