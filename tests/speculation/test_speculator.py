"""How many draft tokens are worth their rows."""

from collections.abc import Sequence
from typing import Any

import pytest

from galley.speculation.proposer import Follower, Forced, Proposal
from galley.speculation.row_costs import RowCosts
from galley.speculation.speculator import (
    MOST_DRAFT_TOKENS,
    DraftRequest,
    SequenceDrafts,
    Speculator,
)

FLAT = {1: 1.0, 4: 1.0, 64: 16.0}
"""Four rows cost as much as one; beyond that each costs a quarter."""
CHEAP = {1: 1.0, 64: 2.0}


class Known:
    """Proposes ``right`` tokens of a text that counts upwards, and then wrong ones."""

    def __init__(self, name: str = "known", match: int = 8) -> None:
        self.name = name
        self.right = 99
        self.match = match
        self.requests = 0

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        return self

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        self.requests += 1
        known = len(tokens)
        return Proposal([known + i if i < self.right else -1 for i in range(most)], self.match)

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        pass


class Decoding:
    """Sequences that decode a text that counts upwards."""

    def __init__(self, speculator: Speculator, sequences: int) -> None:
        self.speculator = speculator
        self.drafts: list[SequenceDrafts] = [speculator.follow(b"", None) for _ in range(sequences)]
        self.texts = [[0] for _ in range(sequences)]

    def step(self, **fields: Any) -> list[int]:
        """Return how many draft tokens were verified for each sequence."""
        requests = [
            DraftRequest(g, text, 99) for g, text in zip(self.drafts, self.texts, strict=True)
        ]
        state = {"decoding": len(requests), "rows": len(requests), **fields}
        least = self.speculator.least(state["decoding"], state["rows"])
        draft_tokens: Sequence[Sequence[int]] = [()] * len(requests)
        if least < 1.0:
            draft_tokens = self.speculator.propose_drafts(
                requests, **{"budget": 512, **state}, least=least
            )
        for drafts, text, own in zip(self.drafts, self.texts, draft_tokens, strict=True):
            known = len(text)
            right = [token for i, token in enumerate(own) if token == known + i]
            text += [*right, known + len(right)]
            if own:
                self.speculator.settle(drafts, text)
        self.speculator.observe(
            self.speculator._costs.seconds(len(requests) + sum(map(len, draft_tokens)))
        )
        return [len(own) for own in draft_tokens]


def test_right_draft_tokens_become_many_and_wrong_ones_few() -> None:
    known = Known()
    one = Decoding(Speculator([known], RowCosts(CHEAP)), 1)
    first = one.step()[0]
    for _ in range(20):
        last = one.step()[0]
    assert 0 < first < last == MOST_DRAFT_TOKENS
    known.right = 0
    for _ in range(60):
        last = one.step()[0]
    assert last <= 2
    known.right = 99
    for _ in range(20):
        last = one.step()[0]
    assert last == MOST_DRAFT_TOKENS


def test_a_large_batch_drafts_and_looks_up_nothing() -> None:
    known = Known()
    many = Decoding(Speculator([known], RowCosts(FLAT)), 48)
    for _ in range(50):
        assert sum(many.step()) == 0
    assert known.requests == 0


def test_in_between_only_likely_draft_tokens_are_verified() -> None:
    known = Known()
    some = Decoding(Speculator([known], RowCosts({1: 1.0, 64: 4.0})), 8)
    for _ in range(10):
        before = sum(some.step())
    assert before > 0
    known.right = 0
    for _ in range(40):
        after = sum(some.step())
    assert after == 0


def test_one_sequence_that_repeats_itself_gets_the_rows() -> None:
    right, wrong = Known(), Known()
    wrong.right = 0
    speculator = Speculator([right], RowCosts(CHEAP))
    two = Decoding(speculator, 2)
    two.drafts[1].tries[0].follower = wrong
    for _ in range(30):
        lengths = two.step()
    assert lengths[0] > 4 * lengths[1]


def test_the_longest_match_goes_first() -> None:
    short, long = Known("short", match=2), Known("long", match=30)
    one = Decoding(Speculator([short, long], RowCosts(FLAT)), 1)
    for _ in range(5):
        one.step()
    counts = one.speculator.counts
    assert counts["short"].proposed == 0
    assert counts["long"].proposed == counts["long"].accepted > 0


def test_a_prompt_in_the_same_step_makes_rows_cost_what_they_cost_there() -> None:
    known = Known()
    known.right = 2
    one = Decoding(Speculator([known], RowCosts({1: 1.0, 8: 1.0, 9: 1.5, 64: 29.0})), 1)
    for _ in range(50):
        alone = one.step()[0]
    assert alone == 7
    assert one.step(rows=64)[0] < alone


def test_the_budget_bounds_the_draft_tokens() -> None:
    one = Decoding(Speculator([Known()], RowCosts(FLAT)), 1)
    assert one.step(budget=1) == [1]


def test_steps_that_take_longer_than_measured_are_believed() -> None:
    costs = RowCosts(CHEAP)
    one = Decoding(Speculator([Known()], costs), 1)
    cheap = one.speculator.least(1, 1)
    for _ in range(200):
        costs.observe(1, 0, 1.0)
        costs.observe(1, 3, 3.0)
    assert costs.factor(1) == pytest.approx(3.0, rel=0.15)
    assert one.speculator.least(1, 1) > 3 * cheap
    for _ in range(2000):  # after steps without draft tokens it is tried again
        costs.observe(1, 0, 1.0)
    assert costs.factor(1) == pytest.approx(1.0, abs=0.01)
    assert costs.factor(8) == 1.0


def test_overhead_per_step_makes_draft_tokens_cheaper() -> None:
    costs = RowCosts({1: 1.0, 2: 2.0})
    one = Decoding(Speculator([Known()], costs), 1)
    assert one.speculator.least(1, 1) == 1.0
    for _ in range(200):
        costs.observe(1, 0, 5.0)
    assert costs.plain(1) == pytest.approx(5.0, rel=0.01)
    assert costs.with_drafts(1, 1, 2) == pytest.approx(7.0, rel=0.01)
    assert one.speculator.least(1, 1) < 0.3
    for _ in range(200):  # and a machine that is faster than before
        costs.observe(1, 0, 0.5)
    assert costs.plain(1) == pytest.approx(0.5, rel=0.01)


def test_costs_lie_on_lines_and_never_fall() -> None:
    costs = RowCosts({1: 2.0, 4: 1.0, 8: 4.0})
    assert [costs.seconds(rows) for rows in (1, 2, 4, 6, 8, 12)] == [2.0, 2.0, 2.0, 3.0, 4.0, 6.0]
