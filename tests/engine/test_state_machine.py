"""Scheduler, KV ledger and encoder cache under arbitrary schedules: no leaks, no starvation."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.engine.blocks import BlockPool, check_blocks
from galley.engine.encoder_cache import KEPT_ENCODER_OUTPUTS
from galley.engine.kv import KVCache
from galley.engine.states import StateCache
from galley.graph.program import KVGroup
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.block_hashes import salt_hash
from tests.engine.machine import (
    BLOCKS,
    PRIORITY_STEPS,
    DraftMachine,
    DraftSpeechMachine,
    DraftWindowMachine,
    EngineMachine,
    FewStatesMachine,
    SlidingMachine,
    SpeculationMachine,
    SpeechMachine,
    StateMachine,
    WindowMachine,
)
from tests.thorough import examples

TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=examples(300), stateful_step_count=40)
TestSpeechMachine = SpeechMachine.TestCase
TestSpeechMachine.settings = settings(max_examples=examples(200), stateful_step_count=40)
TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestSlidingMachine = SlidingMachine.TestCase
TestSlidingMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestFewStatesMachine = FewStatesMachine.TestCase
TestFewStatesMachine.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestDraftMachine = DraftMachine.TestCase
TestDraftMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestDraftSpeechMachine = DraftSpeechMachine.TestCase
TestDraftSpeechMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestDraftWindowMachine = DraftWindowMachine.TestCase
TestDraftWindowMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestSpeculationMachine = SpeculationMachine.TestCase
TestSpeculationMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)


def test_beams_of_two_tenants_do_not_preempt_each_other_for_ever() -> None:
    """A preempted beam search restarts, so it must not lose its blocks to what it preempted."""
    machine = SpeechMachine()
    for tenant, length, audio in (("light", 29, 1), ("", 45, 63)):
        machine.add(
            family=0,
            length=length,
            output=30,
            priority=0,
            salt="",
            audio=audio,
            beams=2,
            tenant=tenant,
        )
    machine.teardown()


def test_requests_over_the_same_audio_encode_it_once() -> None:
    machine = SpeechMachine()
    for salt in ("", "", "tenant"):
        machine.add(family=0, length=4, output=3, priority=0, salt=salt, audio=40)
    machine.step()
    # The tenant's own output does not fit the first step's budget together with the shared one.
    assert machine.encoded_rows == 40
    while machine.live:
        machine.step()
    assert machine.encoded_rows == 80
    # An encoder output stays cached for a while: a second pass over the audio is free.
    machine.add(family=1, length=4, output=3, priority=0, salt="", audio=40)
    machine.teardown()
    assert machine.encoded_rows == 80


def test_finished_encoder_outputs_are_evicted_for_the_next() -> None:
    machine = SpeechMachine()
    machine.set_up(1000)
    cached = []
    for audio in range(1, 3 * KEPT_ENCODER_OUTPUTS):
        machine.add(family=0, length=40, output=8, priority=0, salt="", audio=audio)
        machine.teardown()
        cached.append(machine.pool.cached)
    blocks = blocks_for(3 * KEPT_ENCODER_OUTPUTS) + blocks_for(48)  # the most that one leaves
    assert max(cached) <= KEPT_ENCODER_OUTPUTS * blocks
    # The last one is known, the first is not.
    encoded = machine.encoded_rows
    machine.add(
        family=0, length=40, output=8, priority=0, salt="", audio=3 * KEPT_ENCODER_OUTPUTS - 1
    )
    machine.teardown()
    assert machine.encoded_rows == encoded
    machine.add(family=0, length=40, output=8, priority=0, salt="", audio=1)
    machine.teardown()
    assert machine.encoded_rows == encoded + 1


def test_a_preempted_sequence_encodes_its_input_again() -> None:
    machine = SpeechMachine()
    for audio in (16, 63):
        machine.add(family=0, length=20, output=100, priority=0, salt="", audio=audio)
    machine.teardown()
    assert machine.scheduler.preemptions > 0
    # The first one's text took the blocks of the second one's encoder output.
    assert machine.encoded_rows == 16 + 2 * 63


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    machine = SpeechMachine()
    machine.set_up(BLOCKS, prefix_cache=False)
    for _ in range(2):
        machine.add(family=0, length=4, output=3, priority=0, salt="", audio=16)
    machine.teardown()
    assert machine.encoded_rows == 32


@settings(max_examples=examples(30))
@given(priority=st.integers(0, 3), flood=st.integers(1, 3), tight=st.booleans())
def test_a_low_priority_is_overtaken_only_for_so_long(
    priority: int, flood: int, tight: bool
) -> None:
    """Under an endless flood of urgent requests, a low-priority one still starts in bounded time."""
    machine = EngineMachine()
    if tight:
        machine.set_up(4)
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


def test_urgent_requests_go_first() -> None:
    machine = EngineMachine()
    ids = [
        str(machine.add(family=2, length=10, output=1, priority=priority, salt=f"{priority}"))
        for priority in (3, 1, 2, 0, -1)
    ]
    machine.teardown()
    # Two of 10 tokens fit a step's budget of 24 in full, a third in part.
    assert machine.started == [ids[i] for i in (4, 3, 1, 2, 0)]


def test_decoding_is_never_held_up_by_a_long_prompt() -> None:
    machine = EngineMachine()
    decoding = str(machine.add(family=0, length=3, output=30, priority=0, salt=""))
    machine.step()
    machine.add(family=1, length=100, output=1, priority=-2, salt="")
    for _ in range(4):
        known = machine.live[decoding].known
        machine.step()
        assert machine.live[decoding].known == known + 1


def opened(kv: KVCache, name: str, tokens: list[int], salt: str = "") -> int | None:
    """Open, fill and share a request's tables; return the number of cached tokens, None without room."""
    claim = kv.claim(name, tokens, root=salt_hash(salt), reusable=len(tokens) - 1)
    if not kv.pool.reserve(sum(claim.fresh), claim.shared):
        return None
    kv.open(name, claim)
    kv.register(name, tokens, len(tokens))
    check_blocks(kv.pool, kv.held())
    return claim.tokens


def test_least_recently_used_prefixes_go_first() -> None:
    kv = KVCache(BlockPool(4), prefix_cache=True)

    def use(name: str, first_token: int) -> int | None:
        cached = opened(kv, name, [first_token] * (BLOCK_TOKENS + 1))
        kv.close(name)
        return cached

    assert [use("a", 1), use("b", 2), use("a", 1)] == [0, 0, BLOCK_TOKENS]
    assert opened(kv, "big", list(range(3 * BLOCK_TOKENS))) == 0
    kv.close("big")
    kv.pool.forget(kv.forget("big"))
    # Three of four blocks were needed: the older "b" was evicted and "a" could stay.
    assert use("a", 1) == BLOCK_TOKENS
    assert use("b", 2) == 0
    check_blocks(kv.pool, kv.held())


def test_another_tenant_never_hits() -> None:
    kv = KVCache(BlockPool(8), prefix_cache=True)
    hits: Counter[str] = Counter()
    for name, salt in (("1", "x"), ("2", "y"), ("3", "x"), ("4", "")):
        hits[salt] += opened(kv, name, list(range(40)), salt) or 0
        kv.close(name)
    assert hits == {"x": 32, "y": 0, "": 0}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("window", [1, 16, 17, 33, 100])
def test_a_window_holds_no_more_blocks_than_rows_can_see(window: int, chunked: bool) -> None:
    group = KVGroup(window=window, chunked=chunked)
    kv = KVCache(BlockPool(40), prefix_cache=True, groups=[group])
    tokens = list(range(400))
    assert opened(kv, "r", tokens) == 0
    for computed in range(0, 400, 7):
        kv.slide("r", computed)
        seen = computed - computed % window if chunked else max(0, computed - window + 1)
        assert kv.pool.used == blocks_for(400) - seen // BLOCK_TOKENS
    kv.close("r")
    assert kv.pool.used == 0


def test_a_window_needs_only_its_own_blocks_of_a_prefix() -> None:
    kv = KVCache(BlockPool(10), prefix_cache=True, groups=[KVGroup(window=20)])
    tokens = list(range(10 * BLOCK_TOKENS))
    assert opened(kv, "first", tokens) == 0
    kv.slide("first", len(tokens))
    kv.close("first")
    # Six blocks of another text: the prefix's first blocks are gone, its last ones are not.
    assert opened(kv, "other", [7] * (6 * BLOCK_TOKENS)) == 0
    kv.close("other")
    assert opened(kv, "again", tokens) == 9 * BLOCK_TOKENS
    assert kv.pool.used == 3
    kv.close("again")
    whole = KVCache(BlockPool(10), prefix_cache=True)
    for name, text in (("first", tokens), ("other", [7] * (6 * BLOCK_TOKENS))):
        assert opened(whole, name, text) == 0
        whole.close(name)
    assert opened(whole, "again", tokens) == 4 * BLOCK_TOKENS


def test_a_prefix_ends_where_a_state_was_kept() -> None:
    """States are kept every 32 tokens; a prefix whose blocks remain but whose state is gone is useless."""
    states = StateCache(4, interval=32)
    kv = KVCache(BlockPool(20), prefix_cache=True, states=states)
    tokens = list(range(100))
    assert opened(kv, "first", tokens) == 0
    kv.register("first", tokens, 100)
    plan = kv.advance_state("first", 0, 100, tokens, shares=True)
    source, *places = plan.tolist()
    assert source == -1
    assert places[::2] == [32, 64, 96, 100]
    assert len(set(places[1::2])) == 4
    kv.close("first")
    assert opened(kv, "again", tokens[:80]) == 64
    assert kv.advance_state("again", 64, 80, tokens, shares=True).tolist()[0] == places[3]
    kv.close("again")
    # Its own slot is the least recently kept unused one, or a free one.
    for name in ("x", "y", "z", "w"):
        assert opened(kv, name, [len(name), 7]) == 0
    for name in ("x", "y", "z", "w"):
        kv.close(name)
    assert opened(kv, "late", tokens[:80]) == 0
    kv.close("late")
    states.check()


def test_a_state_that_ends_a_step_is_kept_where_it_is() -> None:
    states = StateCache(3, interval=16)
    kv = KVCache(BlockPool(20), prefix_cache=True, states=states)
    tokens = list(range(40))
    assert opened(kv, "r", tokens) == 0
    _, done, kept = kv.advance_state("r", 0, 16, tokens, shares=True)
    assert done == 16
    source, done, own = kv.advance_state("r", 16, 17, tokens, shares=True)
    assert (source, done) == (kept, 1)
    assert own != kept
    assert kv.advance_state("r", 17, 18, tokens, shares=True).tolist() == [own, 1, own]
    kv.close("r")
    assert (states.pool.used, states.pool.cached) == (0, 1)


def test_a_prefix_loses_its_tail_first_in_all_groups() -> None:
    groups = (KVGroup(), KVGroup(window=BLOCK_TOKENS * 8))
    cache = KVCache(BlockPool(8), prefix_cache=True, groups=groups)
    prompt = list(range(4 * BLOCK_TOKENS))
    claim = cache.claim("r", prompt, root=salt_hash(""), reusable=0)
    assert cache.pool.reserve(sum(claim.fresh), claim.shared)
    cache.open("r", claim)
    cache.register("r", prompt, len(prompt))
    cache.close("r")
    for _ in range(4):
        cache.pool.take()
    again = cache.claim("s", prompt, root=salt_hash(""), reusable=len(prompt) - 1)
    assert again.tokens == 2 * BLOCK_TOKENS
