"""Slots shared by tenants: those with few come before those with many, and none stays idle."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.service.places import DEMAND_SECONDS, Places
from galley.service.turns import Share
from tests.thorough import examples


def fill(places: Places, share: Share, *, now: float = 0.0) -> int:
    taken = places.room(share, now=now)
    for _ in range(taken):
        places.take(share)
    return taken


def test_a_single_tenant_gets_all_slots() -> None:
    places = Places(10)
    assert fill(places, Share("a")) == 10
    assert places.room(Share("a"), now=0) == 0


@pytest.mark.parametrize("weight", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("most", [1, 10, 320])
def test_a_tenant_without_a_slot_gets_one_however_many_another_has(
    most: int, weight: float
) -> None:
    places = Places(most)
    fill(places, Share("heavy"))
    assert places.room(Share("light", weight), now=0) >= 1


def test_free_slots_without_competition_go_to_any_tenant() -> None:
    places = Places(10)
    places.take(Share("light"))
    assert fill(places, Share("heavy")) == 9


def test_a_tenant_refused_below_its_share_gets_the_next_free_slots() -> None:
    places, heavy, light = Places(10), Share("heavy"), Share("light")
    fill(places, heavy)
    places.take(light)
    assert places.room(light, now=0) == 0
    places.want(light, now=0)
    for _ in range(3):
        places.leave("heavy")
    assert places.room(heavy, now=1) == 0
    assert places.room(light, now=1) == 2
    assert places.room(heavy, now=DEMAND_SECONDS + 1) == 2


@settings(max_examples=examples(20))
@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=2, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_competing_tenants_get_slots_by_weight(weights: list[float], seed: int) -> None:
    chance = random.Random(seed)
    places = Places(40)
    shares = [Share(str(index), weight) for index, weight in enumerate(weights)]
    fill(places, shares[0])
    for step in range(400):
        now = step / 50
        running = [s for s in shares for _ in range(places.holds(s))]
        places.leave(chance.choice(running).tenant)
        for share in chance.sample(shares, len(shares)):
            if places.room(share, now=now):
                places.take(share)
            else:
                places.want(share, now=now)
        assert places.held <= 80
    for share in shares:
        fair = 40 * share.weight / sum(weights)
        assert places.holds(share) == pytest.approx(fair, abs=len(weights))


def test_however_many_tenants_come_there_is_an_end() -> None:
    places = Places(4)
    for index in range(100):
        fill(places, Share(str(index)))
    assert places.held == 8
