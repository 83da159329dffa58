"""The engine's state of one request."""

from array import array
from collections.abc import Collection
from dataclasses import InitVar, dataclass, field

from galley.engine.encoder_cache import EncoderFeatures
from galley.engine.tasks import Task, task_of
from galley.grammar.matcher import GrammarMatcher
from galley.speculation.speculator import SequenceDrafts
from galley.types import Align, Decoded, EngineRequest
from galley.types.block_hashes import adapter_hash, salt_hash


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in progress: ``computed`` tokens have keys and values and catch up with the ``known`` ones.

    There are no phases.

        tokens    t0 t1 t2 ... t(computed-1) | t(computed) ... t(known-1) | draft tokens of a step
        blocks    one entry for each 16 positions, in each KV group

    Attributes:
        request: the request that the sequence belongs to.
        payload, id: those of the request.
        prompt: that of the payload.
        tokens: prompt, then output; owned by the sequence.
        task: decides what its rows are used for.
        tables: its block table in each KV group, which grow in place; with several hypotheses, those of
            the first.
        settled: number of computed tokens up to which the scheduler need not consult the KV cache: no
            block is needed, can be shared or leaves a window before that.
        order: place in every queue; smaller is sooner (see ``scheduler.py``).
        number: arrival number, which breaks ties between equal orders; set by the scheduler.
        cached: prompt tokens that the prefix cache supplied when the sequence first ran.
        arrival, started, first_token: seconds on the engine's clock; 0 until it happens.
        timed: whether any of its Outputs may be the last one (because of stop strings) and so carries a
            timing.
        adapter: slot of its LoRA adapter; -1 for none.
        features: its encoder input; None for a text model.
        grammar: state of its output in the request's grammar, for its task.
        engine_seconds: its share of the engine's time so far.
        forks: set by a task whose hypotheses have been replaced: for each new one, the index of the old
            one whose blocks it continues from.
        drafts: its speculation state; None without speculation.
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
    drafts: SequenceDrafts | None = None

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
        """Reset the progress after the keys and values have been lost."""
        self.computed = self.settled = 0
        self.task.restart(self)

    def __lt__(self, other: "Sequence") -> bool:
        """Return whether this sequence's turn comes first."""
        return (self.order, self.number) < (other.order, other.number)

    @property
    def known(self) -> int:
        """Number of tokens of prompt and output so far."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Number of known tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    def is_behind(self) -> bool:
        """Return whether more than its last token is still to be computed."""
        return len(self.tokens) - self.computed > 1

    @property
    def generated(self) -> int:
        """Number of output tokens so far, including those of an earlier engine."""
        return len(self.tokens) - len(self.prompt)
