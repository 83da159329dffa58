"""Scheduler, blocks and prefix cache under arbitrary schedules: nothing leaks, nobody starves."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from galley.audio import EncoderInput
from galley.engine.batch import assemble, assemble_windows
from galley.engine.kv import KEPT_WINDOWS, KVCache
from galley.engine.scheduler import Scheduler, Work
from galley.engine.sequence import Sequence, Window
from galley.types import (
    BLOCK_TOKENS,
    EngineRequest,
    SamplingDefaults,
    SamplingParams,
    blocks_for,
)

BLOCKS = 12
BUDGET = 24
MAX_RUNNING = 4
PRIORITY_STEPS = 8
MELS = 2
PARAMS = SamplingParams(temperature=0.0, seed=0, max_tokens=64).resolved(SamplingDefaults())


class EngineMachine(RuleBasedStateMachine):
    """Drives the real scheduler and KV cache; stands in for the executor by remembering what each slot
    of each block holds, so that a wrong share or an early reuse shows as wrong content."""

    requests = Bundle("requests")
    speech = False

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCache(BLOCKS, prefix_cache=True, kept_windows=2)
        self.scheduler = Scheduler(self.kv, max_batch_tokens=BUDGET, max_running=MAX_RUNNING)
        self.live: dict[str, Sequence] = {}
        self.slots: dict[int, tuple[object, ...]] = {}
        self.encoded_rows = 0
        self.steps = 0
        self.count = 0

    @rule(
        target=requests,
        family=st.integers(0, 2),
        length=st.integers(1, 100),
        output=st.integers(1, 40),
        priority=st.integers(-2, 2),
        salt=st.sampled_from(["", "tenant"]),
        audio=st.sampled_from([1, 15, 16, 40, 63]),
        beams=st.sampled_from([1, 2, 3]),
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
    ) -> str:
        """Prompts of a family share every prefix; ``audio`` rows of one length are the same window."""
        self.count += 1
        window = self.window(audio) if self.speech else None
        beams = beams if self.speech else 1
        room = (BLOCKS - (blocks_for(audio) if self.speech else 0)) // beams
        length = min(length, room * BLOCK_TOKENS - 1)
        output = min(output, room * BLOCK_TOKENS - length)
        sampling = msgspec.structs.replace(PARAMS, num_beams=beams, max_tokens=output)
        prompt = [(7 * i + family) % 50 for i in range(length)]
        request = EngineRequest(
            id=f"r{self.count}",
            prompt=prompt,
            sampling=sampling,
            priority=priority,
            cache_salt=salt,
        )
        sequence = Sequence(
            request,
            order=self.steps + priority * PRIORITY_STEPS,
            arrival=0.0,
            window=window,
        )
        self.live[request.id] = sequence
        self.scheduler.add(sequence)
        return request.id

    def window(self, rows: int) -> Window:
        data = np.full((2 * rows, MELS), rows, dtype=np.float32).tobytes()
        return Window.of(EncoderInput(frames=2 * rows, mels=MELS, data=data), rows)

    @rule(request_id=consumes(requests))
    def abort(self, request_id: str) -> None:
        if sequence := self.live.pop(request_id, None):
            self.scheduler.remove(sequence)

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        before = {s.id: self.context_slots(s) for s in self.scheduler.running}
        plan = self.scheduler.schedule()
        assert plan, "work is waiting and nobody advances"
        for source, target in self.kv.take_copies():
            for i in range(BLOCK_TOKENS):
                self.slots[target * BLOCK_TOKENS + i] = self.slots.get(
                    source * BLOCK_TOKENS + i, ()
                )
        rows = sum(work.count * work.sequence.width for work in plan)
        assert rows <= BUDGET
        self.encode(plan, rows)
        assert all(work.count > 0 for work in plan)
        assert sum(s.request.sampling.num_beams for s in self.scheduler.running) <= MAX_RUNNING
        batch = assemble(plan, self.kv)
        assert len(batch.tokens) == rows
        still_running = before.keys() & {s.id for s in self.scheduler.running}
        self.one_writer_each(plan, set().union(*(before[i] for i in still_running)))
        for work in plan:
            self.write(work)
        for work in plan:
            self.read(work)
        for work in plan:
            self.finish(work)
        self.steps += 1

    def contexts(self, sequence: Sequence) -> list[tuple[list[int], list[int]]]:
        """The tokens and the blocks of each hypothesis; of the only one, if it is no search."""
        texts = [sequence.tokens]
        if sequence.beams is not None and sequence.width > 1:
            prompt = sequence.request.prompt
            texts = [[*prompt, *beam.tokens] for beam in sequence.beams.running]
        return [(text, self.kv.table(sequence.id, i).tolist()) for i, text in enumerate(texts)]

    def one_writer_each(self, plan: list[Work], relied_on: set[int]) -> None:
        """No block is written by two, and no slot that held somebody's context before the step."""
        writer: dict[int, tuple[str, int]] = {}
        for work in plan:
            begin, end = work.sequence.computed, work.sequence.computed + work.count
            for i, (_, table) in enumerate(self.contexts(work.sequence)):
                for position in range(begin, end):
                    block = table[position // BLOCK_TOKENS]
                    assert writer.setdefault(block, (work.sequence.id, i)) == (work.sequence.id, i)
                    assert slot_of(table, position) not in relied_on

    def context_slots(self, sequence: Sequence) -> set[int]:
        return {
            slot_of(table, position)
            for _, table in self.contexts(sequence)
            for position in range(sequence.computed)
        }

    def encode(self, plan: list[Work], tokens: int) -> None:
        """EncoderBatch, before any token is computed; more than one only within the budget."""
        windows = [(w.sequence, w.sequence.window) for w in plan if w.encodes and w.sequence.window]
        rows = sum(window.rows for _, window in windows)
        assert len(windows) < 2 or rows + tokens <= BUDGET
        assert (assemble_windows(plan, self.kv) is None) == (not windows)
        self.encoded_rows += rows
        held = {
            block
            for sequence in self.scheduler.running
            if sequence not in [encoded for encoded, _ in windows]
            for _, table in self.contexts(sequence)
            for block in table
        }
        for sequence, window in windows:
            blocks = self.kv.cross_table(sequence.id).tolist()
            assert held.isdisjoint(blocks)
            for row in range(window.rows):
                self.slots[slot_of(blocks, row)] = self.heard(sequence, row)

    def heard(self, sequence: Sequence, row: int) -> tuple[object, ...]:
        assert sequence.window
        return (sequence.request.cache_salt, sequence.window.digest, row)

    def write(self, work: Work) -> None:
        sequence = work.sequence
        for text, table in self.contexts(sequence):
            for position in range(sequence.computed, sequence.computed + work.count):
                self.slots[slot_of(table, position)] = self.content(sequence, text, position)

    def read(self, work: Work) -> None:
        """The whole context and the whole window, as attention would."""
        sequence = work.sequence
        for text, table in self.contexts(sequence):
            for position in range(sequence.computed + work.count):
                slot = slot_of(table, position)
                assert self.slots[slot] == self.content(sequence, text, position)
        if sequence.window:
            table = self.kv.cross_table(sequence.id).tolist()
            for row in range(sequence.window.rows):
                assert self.slots[slot_of(table, row)] == self.heard(sequence, row)

    def content(self, sequence: Sequence, text: list[int], position: int) -> tuple[object, ...]:
        """What determines a token's keys and values."""
        window = sequence.window and sequence.window.digest
        return (sequence.request.cache_salt, window, tuple(text[: position + 1]))

    def finish(self, work: Work) -> None:
        sequence = work.sequence
        sequence.computed += work.count
        if work.completes and self.advance(sequence):
            del self.live[sequence.id]
            self.scheduler.remove(sequence)

    def advance(self, sequence: Sequence) -> bool:
        """One token more for each hypothesis; whether that was the last."""
        if sequence.beams is None:
            sequence.tokens.append(sum(sequence.tokens) % 50)
            return sequence.generated >= (sequence.request.sampling.max_tokens or 0)
        # Whose continuations win differs from step to step: some fork, some end.
        seed = [sum(text) for text, _ in self.contexts(sequence)]
        logits = np.random.default_rng(seed).standard_normal((len(seed), 50)).astype(np.float32)
        parents = sequence.beams.advance(logits)
        if parents is None:
            return True
        self.kv.fork(sequence.id, parents)
        sequence.tokens = [*sequence.request.prompt, *sequence.beams.running[0].tokens]
        return False

    @invariant()
    def books_balance(self) -> None:
        self.kv.check()
        assert len(self.scheduler.running) + self.scheduler.waiting == len(self.live)

    def teardown(self) -> None:
        """Whatever is left finishes, and then no block is held."""
        for _ in range(20_000):
            if not self.live:
                break
            self.step()
        assert not self.live
        assert self.kv.used == 0
        self.kv.check()


class SpeechMachine(EngineMachine):
    """The same with a window of audio in each request, and with beam searches."""

    speech = True


def slot_of(table: list[int], position: int) -> int:
    return table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=300, stateful_step_count=40)
TestSpeechMachine = SpeechMachine.TestCase
TestSpeechMachine.settings = settings(max_examples=200, stateful_step_count=40)


def test_requests_over_the_same_audio_encode_it_once() -> None:
    machine = SpeechMachine()
    for salt in ("", "", "tenant"):
        machine.add(family=0, length=4, output=3, priority=0, salt=salt, audio=40)
    machine.step()
    # The tenant's own does not fit the first step's budget beside the shared one.
    assert machine.encoded_rows == 40
    while machine.live:
        machine.step()
    assert machine.encoded_rows == 80
    # What was heard stays for a while: a second pass over it costs nothing.
    machine.add(family=1, length=4, output=3, priority=0, salt="", audio=40)
    machine.teardown()
    assert machine.encoded_rows == 80


def test_windows_that_are_over_make_room_for_the_next() -> None:
    machine = SpeechMachine()
    machine.kv = KVCache(1000, prefix_cache=True)
    machine.scheduler = Scheduler(machine.kv, max_batch_tokens=BUDGET, max_running=MAX_RUNNING)
    cached = []
    for audio in range(1, 3 * KEPT_WINDOWS):
        machine.add(family=0, length=40, output=8, priority=0, salt="", audio=audio)
        machine.teardown()
        cached.append(machine.kv.cached)
    blocks = blocks_for(3 * KEPT_WINDOWS) + blocks_for(48)  # the most that one leaves
    assert max(cached) <= KEPT_WINDOWS * blocks
    # The last one is known, the first is not.
    encoded = machine.encoded_rows
    machine.add(family=0, length=40, output=8, priority=0, salt="", audio=3 * KEPT_WINDOWS - 1)
    machine.teardown()
    assert machine.encoded_rows == encoded
    machine.add(family=0, length=40, output=8, priority=0, salt="", audio=1)
    machine.teardown()
    assert machine.encoded_rows == encoded + 1


def test_a_preempted_sequence_hears_its_window_again() -> None:
    machine = SpeechMachine()
    for audio in (16, 63):
        machine.add(family=0, length=20, output=100, priority=0, salt="", audio=audio)
    machine.teardown()
    assert machine.scheduler.preemptions > 0
    # The first one's text took the blocks of the second one's window.
    assert machine.encoded_rows == 16 + 2 * 63


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    machine = SpeechMachine()
    machine.kv = KVCache(BLOCKS, prefix_cache=False)
    machine.scheduler = Scheduler(machine.kv, max_batch_tokens=BUDGET, max_running=MAX_RUNNING)
    for _ in range(2):
        machine.add(family=0, length=4, output=3, priority=0, salt="", audio=16)
    machine.teardown()
    assert machine.encoded_rows == 32


@settings(max_examples=30)
@given(priority=st.integers(0, 3), flood=st.integers(1, 3), tight=st.booleans())
def test_a_low_priority_is_overtaken_only_for_so_long(
    priority: int, flood: int, tight: bool
) -> None:
    """Against an endless flood of urgent requests, a patient one still starts in bounded time."""
    machine = EngineMachine()
    if tight:
        machine.kv = KVCache(4, prefix_cache=True)
        machine.scheduler = Scheduler(machine.kv, max_batch_tokens=BUDGET, max_running=MAX_RUNNING)
    patient = str(machine.add(family=0, length=20, output=4, priority=priority, salt=""))
    bound = (priority + 1) * PRIORITY_STEPS + 200
    for _ in range(bound):
        if patient not in machine.live:
            return
        for _ in range(flood):
            machine.add(family=1, length=20, output=4, priority=0, salt="")
        machine.step()
        machine.books_balance()
    raise AssertionError(f"still waiting after {bound} steps")


def test_urgent_requests_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = EngineMachine()
    ids = [
        str(machine.add(family=2, length=10, output=1, priority=priority, salt=f"{priority}"))
        for priority in (3, 1, 2, 0, -1)
    ]
    started: list[str] = []
    schedule = machine.scheduler.schedule

    def noted() -> list[Work]:
        plan = schedule()
        started.extend(w.sequence.id for w in plan if w.sequence.id not in started)
        return plan

    monkeypatch.setattr(machine.scheduler, "schedule", noted)
    while machine.live:
        machine.step()
    assert [ids.index(i) for i in started] == [4, 3, 1, 2, 0]


def test_decoding_is_never_held_up_by_a_long_prompt() -> None:
    machine = EngineMachine()
    decoding = str(machine.add(family=0, length=3, output=30, priority=0, salt=""))
    machine.step()
    machine.add(family=1, length=100, output=1, priority=-2, salt="")
    for _ in range(4):
        known = machine.live[decoding].known
        machine.step()
        assert machine.live[decoding].known == known + 1


def test_least_recently_used_prefixes_go_first() -> None:
    kv = KVCache(4, prefix_cache=True)

    def use(name: str, first_token: int) -> int:
        tokens = [first_token] * (BLOCK_TOKENS + 1)
        cached = kv.open(name, tokens, salt="", reusable=len(tokens) - 1)
        assert cached is not None
        kv.commit(name, tokens, len(tokens))
        kv.close(name)
        return cached

    assert [use("a", 1), use("b", 2), use("a", 1)] == [0, 0, BLOCK_TOKENS]
    tokens = list(range(3 * BLOCK_TOKENS))
    assert kv.open("big", tokens, salt="", reusable=len(tokens) - 1) == 0
    kv.close("big")
    # Three of four blocks were needed: "b", the older, had to go and "a" could stay.
    assert use("a", 1) == BLOCK_TOKENS
    assert use("b", 2) == 0
    kv.check()


def test_another_tenant_never_hits() -> None:
    kv = KVCache(8, prefix_cache=True)
    tokens = list(range(40))
    hits: Counter[str] = Counter()
    for name, salt in (("1", "x"), ("2", "y"), ("3", "x"), ("4", "")):
        hits[salt] += kv.open(name, tokens, salt=salt, reusable=len(tokens) - 1) or 0
        kv.commit(name, tokens, len(tokens))
        kv.close(name)
    assert hits == {"x": 32, "y": 0, "": 0}
