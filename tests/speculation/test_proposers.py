"""The sources of draft tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.speculation import prompt_lookup
from galley.speculation.prompt_lookup import PromptLookup
from galley.speculation.proposer import MOST_MATCH
from galley.speculation.recent_texts import LENGTHS, RecentTexts

SALT, OTHER = b"salt", b"other"
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def by_hand(tokens: list[int], most: int) -> tuple[list[int], int]:
    """Return what follows the latest earlier occurrence of the longest n-gram that has one."""
    for length in prompt_lookup.LENGTHS:
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[-length:]:
                match = 0
                while (
                    match < min(place, MOST_MATCH)
                    and tokens[place - 1 - match] == tokens[-1 - match]
                ):
                    match += 1
                text = list(tokens)
                for i in range(most):
                    text.append(text[place + i])
                return text[len(tokens) :], match
    return [], 0


@given(tokens=TEXTS, cuts=st.sets(st.integers(1, 60)), most=st.integers(1, 12))
def test_prompt_lookup_finds_what_followed(tokens: list[int], cuts: set[int], most: int) -> None:
    """The result does not depend on how the sequence grew."""
    follower = PromptLookup().follow(SALT, None)
    for end in sorted(cuts | {len(tokens)}):
        known = tokens[:end]
        proposal = follower.propose(known, most)
        assert (list(proposal.tokens), proposal.match) == by_hand(known, most)


def test_prompt_lookup_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "KEPT_TOKENS", 16)
    follower = PromptLookup().follow(SALT, None)
    tokens: list[int] = []
    for i in range(500):
        tokens.append(i)
        follower.propose(tokens, 4)
        assert len(follower._places) <= 3 * 32  # type: ignore[attr-defined]
    assert follower.propose([*tokens, 2, 3], 4).tokens == ()  # evicted
    assert follower.propose([*tokens, 2, 3, 496, 497], 2).tokens == [498, 499]


@given(texts=st.lists(st.tuples(TEXTS, st.sampled_from([SALT, OTHER])), max_size=12))
def test_recent_texts_stay_within_their_bound_and_tenant(
    texts: list[tuple[list[int], bytes]],
) -> None:
    recent = RecentTexts(kept_tokens=50)
    for i, (tokens, salt) in enumerate(texts):
        offset = 0 if salt == SALT else 10
        recent.remember(salt, [token + offset for token in tokens], len(tokens) // 2)
        if i % 3:  # texts are indexed at the first lookup
            recent.follow(salt, None).propose(tokens, 4)
        assert recent.tokens <= 50
        entries = sum(map(len, recent._places.values()))
        assert entries <= recent.tokens * len(LENGTHS)
    for tokens, _ in texts:
        for salt, offset in ((SALT, 0), (OTHER, 10)):
            of_other = [token + 10 - offset for token in tokens]
            assert recent.follow(salt, None).propose(of_other, 4).tokens == ()
            proposal = recent.follow(salt, None).propose([token + offset for token in tokens], 4)
            assert all(offset <= token <= offset + 3 for token in proposal.tokens)
    for _ in range(2):
        recent.remember(b"last", list(range(100, 150)), 0)
    recent.follow(b"last", None).propose([1], 4)
    assert list(recent._places) == [b"last"]
    assert not recent._unread


def test_recent_texts_find_the_longest_match_of_the_latest() -> None:
    recent = RecentTexts()
    recent.remember(SALT, [*range(20), 50, 51], 5)
    recent.remember(SALT, [*range(16, 20), 60, 61], 0)
    follower = recent.follow(SALT, None)
    assert follower.propose(list(range(20)), 4) == ([50, 51], 20)
    assert follower.propose(list(range(15, 20)), 1) == ([60], 4)
    assert follower.propose([17, 18, 19], 4).tokens == ()


def test_an_answer_is_found_from_the_end_of_its_prompt() -> None:
    recent = RecentTexts()
    recent.remember(SALT, [*range(30), 70, 71, 72], 30)
    assert recent.follow(SALT, None).propose(list(range(30)), 8).tokens == [70, 71, 72]
