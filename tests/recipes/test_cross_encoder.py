"""Pairs for the recipe of a cross-encoder."""

import itertools
import random

import pytest

from galley.cache.tuning import Pair
from galley.errors import SettingsError
from recipes.questions.cross_encoder import BATCH, SORTED, batches, divided


def test_no_text_is_in_both_parts() -> None:
    rng = random.Random(0)
    pairs = [Pair(f"{rng.randrange(200)}", f"{rng.randrange(200)}", True) for _ in range(100)]
    parts = divided(pairs, 0.5, seed=1)
    assert sorted(parts[0] + parts[1]) == sorted(pairs)
    first, second = ({text for pair in part for text in pair[:2]} for part in parts)
    assert first
    assert second
    assert not first & second


def test_too_few_pairs_for_a_batch_are_refused() -> None:
    pairs = [Pair("a", str(number), same=True) for number in range(BATCH)]
    assert len(next(batches(pairs, random.Random(0)))) == BATCH
    with pytest.raises(SettingsError, match=f"{BATCH - 1} pairs .* give more pairs"):
        next(batches(pairs[1:], random.Random(0)))


def test_all_but_the_rest_of_a_batch_are_trained_with() -> None:
    for whole in (SORTED - 1, SORTED, 2 * SORTED - 1):
        pairs = [Pair(str(number), "b", same=True) for number in range(BATCH * whole + 1)]
        made = [*itertools.islice(batches(pairs, random.Random(0)), whole)]
        assert {len(batch) for batch in made} == {BATCH}
        assert len({frozenset(pair[:2]) for batch in made for pair in batch}) == BATCH * whole
