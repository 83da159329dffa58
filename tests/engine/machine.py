"""The real scheduler, KV ledger and encoder cache under arbitrary schedules, without an executor."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from galley.engine.assemble import assemble
from galley.engine.blocks import BlockPool, check_blocks
from galley.engine.commit import commit
from galley.engine.encoder_cache import EncoderCache, EncoderFeatures
from galley.engine.kv import KVCache
from galley.engine.scheduler import Scheduler, Work
from galley.engine.sequence import Sequence
from galley.engine.speculation import EngineSpeculation
from galley.engine.states import StateCache
from galley.engine.tasks.beam import BeamTask
from galley.graph.program import KVGroup
from galley.ops.batch import Batch, Integers
from galley.ops.sampling import SamplingBatch, StepResult, sample
from galley.speculation.prompt_lookup import PromptLookup
from galley.speculation.recent_texts import RecentTexts
from galley.speculation.row_costs import RowCosts
from galley.types import (
    BLOCK_TOKENS,
    EngineRequest,
    Generate,
    SamplingDefaults,
    SamplingParams,
    blocks_for,
)
from galley.types.audio import EncoderInput
from galley.types.block_hashes import encoder_block_hashes
from tests.engine.drafts import each

BLOCKS = 12
BUDGET = 24
MAX_RUNNING = 4
PRIORITY_STEPS = 8
MELS = 2
VOCAB = 50
PARAMS = SamplingParams(temperature=0.0, seed=0, max_tokens=64).resolved(SamplingDefaults())


class EngineMachine(RuleBasedStateMachine):
    """Replaces the executor: it records the content of each slot of each block, so that a wrong
    share, an early reuse or a block released from its window too soon shows as wrong content.
    """

    requests = Bundle("requests")
    blocks = BLOCKS
    speech = False
    draft_tokens = False
    speculates = False
    groups: tuple[KVGroup, ...] = (KVGroup(),)
    state_slots = 0

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Sequence] = {}
        self.slots: dict[int, tuple[object, ...]] = {}
        self.states: dict[int, tuple[object, ...]] = {}
        self.encoded_rows = 0
        self.started: list[str] = []
        self.steps = 0
        self.count = 0
        self.set_up(self.blocks, kept=2)

    def set_up(self, blocks: int, *, prefix_cache: bool = True, kept: int = 16) -> None:
        self.kept = kept
        self.encoded: dict[
            bytes, bytes
        ] = {}  # root -> block hash of the encoder output's first block
        self.pool = BlockPool(blocks)
        states = StateCache(self.state_slots, interval=16) if self.state_slots else None
        self.kv = KVCache(self.pool, prefix_cache=prefix_cache, groups=self.groups, states=states)
        self.encoder_cache = EncoderCache(self.pool, sharing=prefix_cache, kept=kept)
        self.speculation = EngineSpeculation()
        if self.speculates:
            costs = RowCosts({1: 1.0, 8: 1.2, 64: 9.0})
            self.speculation = EngineSpeculation([PromptLookup(), RecentTexts(200)], costs)
        self.scheduler = Scheduler(
            self.kv,
            self.encoder_cache,
            max_batch_tokens=BUDGET,
            max_running=MAX_RUNNING,
            propose_drafts=each(self.propose)
            if self.draft_tokens
            else self.speculation.propose_drafts,
        )

    @rule(
        target=requests,
        family=st.integers(0, 2),
        length=st.integers(1, 100),
        output=st.integers(1, 40),
        priority=st.integers(-2, 2),
        salt=st.sampled_from(["", "tenant"]),
        audio=st.sampled_from([1, 15, 16, 40, 63]),
        beams=st.sampled_from([1, 2, 3]),
        tenant=st.sampled_from(["", "light", "heavy"]),
    )
    def add(
        self,
        family: int,
        length: int,
        output: int,
        priority: int,
        salt: str,
        audio: int = 0,
        beams: int = 1,
        tenant: str = "",
    ) -> str:
        """Prompts of a family share every prefix; ``audio`` rows of one length are the same encoder
        input.
        """
        self.count += 1
        features = self.features(audio, salt) if self.speech else None
        beams = beams if self.speech else 1
        room = self.pool.total - (blocks_for(audio) if self.speech else 0)
        room = room // beams // len(self.groups)
        length = min(length, room * BLOCK_TOKENS - 1)
        output = min(output, room * BLOCK_TOKENS - length)
        sampling = msgspec.structs.replace(PARAMS, num_beams=beams, max_tokens=output)
        request = EngineRequest(
            id=f"r{self.count}",
            payload=Generate(
                prompt=[(7 * i + family) % VOCAB for i in range(length)], sampling=sampling
            ),
            priority=priority,
            cache_salt=salt,
            tenant=tenant,
            weight={"": 1.0, "light": 0.5, "heavy": 3.0}[tenant],
        )
        sequence = Sequence(
            request, order=self.steps + priority * PRIORITY_STEPS, arrival=0.0, features=features
        )
        self.live[request.id] = sequence
        self.speculation.begin(sequence)
        self.scheduler.add(sequence)
        return request.id

    def features(self, rows: int, salt: str) -> EncoderFeatures:
        data = np.full((2 * rows, MELS), rows, dtype=np.float32).tobytes()
        return EncoderFeatures.of(EncoderInput(frames=2 * rows, mels=MELS, data=data), rows, salt)

    def propose(self, sequence: Sequence) -> Tokens[int]:
        """Propose up to six draft tokens, right up to a position that differs from step to step."""
        count = self.steps % 7
        text = list(sequence.tokens)
        for i in range(count):
            text.append(next_token(text) + (i == self.steps % 5))
        return [token % VOCAB for token in text[len(sequence.tokens) :]]

    @rule(request_id=consumes(requests))
    def abort(self, request_id: str) -> None:
        if sequence := self.live.pop(request_id, None):
            self.scheduler.remove(sequence)

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        before = [(s, s.preemptions, self.context_slots(s)) for s in self.scheduler.running]
        decoding = [s for s in self.scheduler.running if not s.is_behind()]
        plan = self.scheduler.schedule()
        assert plan, "work is waiting and nobody advances"
        advancing = [work.sequence for work in plan]
        for s in decoding:
            assert s in advancing or s not in self.scheduler.running, "guesses before known tokens"
        for work in plan:
            if work.sequence.id not in self.started:
                self.started.append(work.sequence.id)
        batch, sampling = assemble(plan, self.kv, self.encoder_cache)
        for source, target in batch.copies:
            for i in range(BLOCK_TOKENS):
                self.slots[target * BLOCK_TOKENS + i] = self.slots.get(
                    source * BLOCK_TOKENS + i, ()
                )
        rows = sum(work.count * work.sequence.task.width for work in plan)
        assert len(batch.tokens) == rows <= BUDGET
        assert all(work.count > 0 for work in plan)
        assert sum(s.task.seats for s in self.scheduler.running) <= MAX_RUNNING
        self.encode(plan, rows, batch)
        # A victim may be scheduled again in the same step, and recompute what it had.
        kept = [slots for s, preemptions, slots in before if s.preemptions == preemptions]
        self.one_writer_each(plan, set().union(*kept))
        for work in plan:
            self.write(work)
        for work in plan:
            self.read(work)
        for work, states in zip(plan, batch.states or (), strict=bool(self.state_slots)):
            self.carry_state(work.sequence, work.count, states)
        result = self.result_of(plan, batch, sampling)
        known = {work.sequence.id: list(work.sequence.tokens) for work in plan}
        outputs = commit(plan, result, self.kv)
        self.speculation.settle(plan, 1.0)
        for output in outputs:
            if output.finish_reason:
                sequence = self.live.pop(output.request_id)
                self.speculation.end(sequence)
                self.scheduler.remove(sequence)
        for work in plan:
            self.check_text(work.sequence, known[work.sequence.id])
        self.steps += 1

    def contexts(self, sequence: Sequence) -> Iterator[tuple[list[int], KVGroup, list[int]]]:
        """Yield for each hypothesis and each KV group: the hypothesis' tokens and its block table."""
        texts = [sequence.tokens]
        if isinstance(sequence.task, BeamTask) and sequence.task.width > 1:
            prompt = sequence.prompt
            texts = [[*prompt, *beam.tokens] for beam in sequence.task.search.running]
        for text, hypothesis in zip(texts, self.kv.tables(sequence.id), strict=True):
            for group, table in zip(self.groups, hypothesis, strict=True):
                yield text, group, table.tolist()

    def one_writer_each(self, plan: list[Work], relied_on: set[int]) -> None:
        """No block is written twice, and no slot that held a sequence's context before the step."""
        writer: dict[int, tuple[str, int]] = {}
        for work in plan:
            begin, end = work.sequence.computed, work.sequence.computed + work.count
            for i, (_, _, table) in enumerate(self.contexts(work.sequence)):
                for position in range(begin, end):
                    block = table[position // BLOCK_TOKENS]
                    assert writer.setdefault(block, (work.sequence.id, i)) == (work.sequence.id, i)
                    assert slot_of(table, position) not in relied_on

    def context_slots(self, sequence: Sequence) -> set[int]:
        return {
            slot_of(table, position)
            for _, group, table in self.contexts(sequence)
            for position in seen(group, sequence.computed, sequence.computed)
        }

    def encode(self, plan: list[Work], tokens: int, batch: Batch) -> None:
        """Check encoder inputs, which come before any token; more than one only within the budget."""
        works = [work for work in plan if work.encodes]
        rows = sum(work.sequence.features.rows for work in works if work.sequence.features)
        assert len(works) < 2 or rows + tokens <= BUDGET
        assert (batch.encode is None) == (not works)
        self.encoded_rows += rows
        held = {
            block
            for sequence in self.scheduler.running
            if sequence not in [work.sequence for work in works]
            for _, _, table in self.contexts(sequence)
            for block in table
        }
        for work in works:
            features = work.sequence.features
            assert features
            self.encoded[features.root] = encoder_block_hashes(features.root, 1)[0]
            blocks = self.encoder_cache.table(work.sequence.id).tolist()
            assert held.isdisjoint(blocks)
            for row in range(features.rows):
                self.slots[slot_of(blocks, row)] = (features.root, row)

    def write(self, work: Work) -> None:
        sequence = work.sequence
        for text, group, table in self.contexts(sequence):
            text_with_drafts = [*text, *work.draft_tokens]
            for position in range(sequence.computed, sequence.computed + work.count):
                content = self.content(sequence, group, text_with_drafts, position)
                self.slots[slot_of(table, position)] = content

    def read(self, work: Work) -> None:
        """Check all that the rows attend to of their context, and the whole encoder output."""
        sequence = work.sequence
        end = sequence.computed + work.count
        for text, group, table in self.contexts(sequence):
            text_with_drafts = [*text, *work.draft_tokens]
            for position in seen(group, sequence.computed, end):
                content = self.content(sequence, group, text_with_drafts, position)
                assert self.slots[slot_of(table, position)] == content
        if sequence.features:
            table = self.encoder_cache.table(sequence.id).tolist()
            for row in range(sequence.features.rows):
                assert self.slots[slot_of(table, row)] == (sequence.features.root, row)

    def carry_state(self, sequence: Sequence, count: int, states: Integers) -> None:
        """Check that a state covers the tokens before it; later ones, up to all tokens, are written."""
        text = (sequence.root, *sequence.tokens)
        source, *places = states
        assert (source < 0) == (sequence.computed == 0)
        if source >= 0:
            assert self.states[source] == text[: 1 + sequence.computed]
        done = [0, *places[::2]]
        assert done == sorted({*done})
        assert done[-1] == count
        for rows, slot in zip(done[1:], places[1::2], strict=True):
            self.states[slot] = text[: 1 + sequence.computed + rows]

    def content(
        self, sequence: Sequence, group: KVGroup, text: list[int], position: int
    ) -> tuple[object, ...]:
        """Return what determines a token's keys and values."""
        return (sequence.root, self.groups.index(group), tuple(text[: position + 1]))

    def result_of(self, plan: list[Work], batch: Batch, sampling: SamplingBatch) -> StepResult:
        """Sample from logits whose maximum is a function of the text so far; beam searches may use any."""
        logits = np.zeros((len(batch.wanted), VOCAB), dtype=np.float32)
        row = 0
        for work in plan:
            sequence, wanted = work.sequence, work.sequence.task.wanted(work.sequence, work)
            for i in range(wanted):
                text = [*sequence.tokens, *work.draft_tokens[:i]]
                if isinstance(sequence.task, BeamTask):
                    rng = np.random.default_rng([sum(text), i, self.steps])
                    logits[row] = rng.standard_normal(VOCAB)
                else:
                    logits[row, next_token(text)] = 1.0
                row += 1
        return sample(logits, sampling, lambda rows, draws: rows[draws.rows].argmax(-1).tolist())

    def check_text(self, sequence: Sequence, known: list[int]) -> None:
        """Whatever was proposed, the text equals the one without draft tokens."""
        if isinstance(sequence.task, BeamTask):
            return
        for token in sequence.tokens[len(known) :]:
            assert token == next_token(known)
            known.append(token)

    @invariant()
    def books_balance(self) -> None:
        check_blocks(self.pool, [*self.kv.held(), *self.encoder_cache.held()])
        if self.kv.states is not None:
            self.kv.states.check()
        assert len(self.scheduler.running) + self.scheduler.waiting == len(self.live)
        self.few_encoder_outputs_are_kept()

    def few_encoder_outputs_are_kept(self) -> None:
        """Check that cached encoder outputs are those of running requests and at most ``kept`` others."""
        running = {s.features.root for s in self.scheduler.running if s.features}
        there = {root for root, key in self.encoded.items() if self.pool.find(key) is not None}
        assert len(there - running) <= self.kept

    def teardown(self) -> None:
        """All remaining requests finish, and then no block is held."""
        for _ in range(20_000):
            if not self.live:
                break
            self.step()
        assert not self.live
        assert self.pool.used == 0
        assert self.kv.states is None or self.kv.states.pool.used == 0
        self.books_balance()


class SpeechMachine(EngineMachine):
    """The same with an encoder input in each request, and with beam searches."""

    speech = True


class WindowMachine(EngineMachine):
    """The same with layers that retain the whole context, a window, or another window."""

    blocks = 3 * BLOCKS
    groups = (KVGroup(), KVGroup(window=20), KVGroup(window=1))


class SlidingMachine(EngineMachine):
    """The same with a window in every layer, as in Mistral."""

    groups = (KVGroup(window=33),)


class StateMachine(EngineMachine):
    """The same with recurrent layers, and fewer state slots than running sequences could use."""

    state_slots = 5


class FewStatesMachine(EngineMachine):
    """The same with states for only one sequence."""

    state_slots = 2


class DraftMachine(EngineMachine):
    """The same with right and wrong draft tokens for every sequence that has caught up."""

    draft_tokens = True


class DraftSpeechMachine(DraftMachine):
    """Draft tokens together with encoder inputs, and with beam searches, which verify none."""

    speech = True


class DraftWindowMachine(DraftMachine):
    """Draft tokens together with windows and chunks."""

    blocks = 4 * BLOCKS
    groups = (KVGroup(), KVGroup(window=20), KVGroup(window=40, chunked=True))


class SpeculationMachine(EngineMachine):
    """The same with the draft tokens of the real proposers, as many as the real rule chooses."""

    speculates = True


def next_token(text: Tokens[int]) -> int:
    return sum(text) % VOCAB


def seen(group: KVGroup, first: int, end: int) -> range:
    """Return the positions that rows ``first`` to ``end`` attend to in a group, themselves included."""
    window = group.window or end
    return range(first // window * window if group.chunked else max(0, first - window + 1), end)


def slot_of(table: list[int], position: int) -> int:
    return table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
