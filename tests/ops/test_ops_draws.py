"""Native draws equal numpy's: the same tokens for any logits, parameters and instruction set."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from galley import _native
from galley.ops.draws import NO_TOKEN, WEIGHT_BITS, Draws, draw_all, sampling_record, weights
from tests.thorough import examples

ISAS = _native.supported_isas()
Logits = npt.NDArray[np.float32]


def logits_of(length: int, seed: int, spread: float, kinds: int, excluded: float) -> Logits:
    """Return a row; with few ``kinds`` of value there are ties. A share is ``excluded``, but never all."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, spread, length)
    if kinds:
        row = rng.choice(rng.normal(0, spread, kinds), length)
    row[rng.random(length) < excluded] = -np.inf
    row[rng.integers(length)] = rng.normal(0, spread)
    return np.where(np.isfinite(row), row.clip(-3e38, 3e38), row).astype(np.float32)


LOGITS = st.builds(
    logits_of,
    st.integers(1, 5000),
    st.integers(0, 2**32),
    st.sampled_from([1e-6, 0.01, 1.0, 4.0, 30.0, 1e6, 1e38]),
    st.sampled_from([0, 0, 1, 2, 20]),
    st.sampled_from([0.0, 0.0, 0.5, 1.0]),
)
SEEDS = st.integers(-(2**63), 2**64 - 1)
TEMPERATURES = st.one_of(
    st.floats(0.05, 3.0), st.sampled_from([0.0, 1e-310, 1e-12, 1e-3, 1.0, 100.0])
)
TOP_K = st.sampled_from([-1, 0, 0, 0, 1, 2, 20, 63, 64, 65, 1000, 2**31 - 1])
TOP_P = st.one_of(
    st.sampled_from([1.0, 1.0, 0.3, 0.9, 0.999, 1e-300, math.nextafter(1.0, 0.0)]),
    st.floats(0.0, 1.0, exclude_min=True),
)
MIN_P = st.one_of(st.sampled_from([0.0, 0.0, 0.0, 1e-300, 0.001, 0.1, 1.0]), st.floats(0.0, 1.0))


def native(isa: str, logits: Logits, draws: Draws, threads: int = 1) -> list[int]:
    runtime = _native.Runtime(isa, threads, [])
    return runtime.draw(logits, draws.rows, draws.positions, draws.records)


@settings(max_examples=examples(600))
@given(
    row=LOGITS,
    seed=SEEDS,
    temperature=TEMPERATURES,
    top_k=TOP_K,
    top_p=TOP_P,
    min_p=MIN_P,
)
def test_tokens_are_those_of_numpy(
    row: Logits, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    record = sampling_record(
        seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    positions = [0, 1, 2, 7, 2**40]
    draws = Draws([0] * len(positions), positions, record * len(positions))
    expected = draw_all(row[None], draws)
    assert NO_TOKEN not in expected
    assert np.isfinite(row[expected]).all()
    for isa in ISAS:
        assert native(isa, row[None], draws) == expected, isa


@pytest.mark.parametrize("spread", [0.01, 2.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 50},
        {"top_k": 20_000, "top_p": 0.8},
        {"min_p": 0.02},
        {"min_p": 0.02, "top_p": 0.9},
    ],
)
def test_a_large_vocabulary(spread: float, changes: dict[str, Any]) -> None:
    """Rows are flat and peaked; sizes are not round multiples."""
    row = np.random.default_rng(3).normal(0, spread, 151_937).astype(np.float32)
    parameters: dict[str, Any] = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    record = sampling_record(seed=11, **{**parameters, **changes})
    draws = Draws([0] * 8, range(8), record * 8)
    expected = draw_all(row[None], draws)
    assert len(set(expected)) > 1
    for isa in ISAS:
        assert native(isa, row[None], draws) == expected, isa


def test_one_far_above_many_equals() -> None:
    """The nucleus ends among equal logits, which are ordered by id, far from the best."""
    row = np.full(40_000, -3.0, dtype=np.float32)
    row[777] = 9.0
    record = sampling_record(seed=5, temperature=1.0, top_k=0, top_p=0.99, min_p=0.0)
    draws = Draws([0] * 200, range(200), record * 200)
    expected = draw_all(row[None], draws)
    assert {777} < set(expected)
    for isa in ISAS:
        assert native(isa, row[None], draws) == expected, isa


def test_more_may_stay_than_are_not_ruled_out() -> None:
    row = np.full(500, -np.inf, dtype=np.float32)
    row[100:190] = np.random.default_rng(1).normal(0, 2, 90)
    record = sampling_record(seed=5, temperature=1.0, top_k=300, top_p=0.97, min_p=0.0)
    draws = Draws([0] * 50, range(50), record * 50)
    expected = draw_all(row[None], draws)
    assert len(set(expected)) > 10
    assert np.isfinite(row[expected]).all()
    for isa in ISAS:
        assert native(isa, row[None], draws) == expected, isa


@settings(max_examples=examples(200))
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 9),
    length=st.integers(1, 300),
    threads=st.integers(1, 3),
)
def test_a_row_is_drawn_from_alike_among_others(
    seed: int, count: int, length: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (count, length)).astype(np.float32)
    rows = rng.integers(count, size=2 * count).tolist()
    positions = rng.integers(1000, size=2 * count).tolist()
    records = [
        sampling_record(
            seed=int(s), temperature=s % 3 / 2, top_k=0, top_p=1.0 - s % 2 / 9, min_p=0.0
        )
        for s in rng.integers(1000, size=2 * count)
    ]
    together = Draws(rows, positions, b"".join(records))
    alone = [
        draw_all(logits, Draws([row], [position], record))[0]
        for row, position, record in zip(rows, positions, records, strict=True)
    ]
    assert draw_all(logits, together) == alone
    for isa in ISAS:
        assert native(isa, logits, together, threads) == alone


@settings(max_examples=examples(300))
@given(row=LOGITS, temperature=st.floats(0.01, 100.0))
@example(row=np.zeros(1, dtype=np.float32), temperature=1.0)
def test_weights_have_the_bits_of_numpy(row: Logits, temperature: float) -> None:
    most, scale = row.max(), 1 / (math.log(2) * temperature)
    expected = weights(row, most, scale)
    assert expected[row.argmax()] == 2**WEIGHT_BITS
    got = np.empty(len(row), dtype=np.int32)
    for isa in ISAS:
        assert _native.softmax_weights(row, most, scale, isa, got) == expected.sum()
        assert np.array_equal(got, expected), isa


@given(gaps=st.lists(st.floats(0, 25, width=32), min_size=1, max_size=50))
def test_weights_are_the_softmax(gaps: list[float]) -> None:
    row = -np.array([0.0, *gaps], dtype=np.float32)
    exact = np.exp(row.astype(np.float64)) * 2**WEIGHT_BITS
    assert np.abs(weights(row, row.max(), 1 / math.log(2)) - exact).max() <= 2 ** (WEIGHT_BITS - 21)
    # Small weights have small errors: their own rounding, and a few parts per million.
    error = np.abs(weights(row, row.max(), 1 / math.log(2)) - exact)
    assert (error <= 1 + 4e-6 * exact).all()


@settings(max_examples=examples(300))
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 3000),
    kinds=st.integers(1, 20),
    edge=st.sampled_from([math.nan, math.inf, -math.inf, 0.0]),
)
def test_greedy_is_argmax_or_nothing(seed: int, length: int, kinds: int, edge: float) -> None:
    rng = np.random.default_rng(seed)
    row = rng.choice([*rng.normal(0, 4, kinds), edge], length).astype(np.float32)
    greedy = sampling_record(seed=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    sampled = sampling_record(seed=0, temperature=1.0, top_k=0, top_p=0.5, min_p=0.0)
    usable = math.isfinite(row.max())
    for isa in ISAS:
        got = native(isa, row[None], Draws([0, 0], [1, 1], greedy + sampled))
        assert got[0] == (row.argmax() if usable else NO_TOKEN)
        assert (got[1] == NO_TOKEN) == (not usable)
        assert got == draw_all(row[None], Draws([0, 0], [1, 1], greedy + sampled))


def test_draws_that_do_not_fit_are_refused() -> None:
    logits = np.zeros((2, 5), dtype=np.float32)
    record = sampling_record(seed=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    for draws in (
        Draws([2], [0], record),
        Draws([-1], [0], record),
        Draws([0], [0, 1], record),
        Draws([0, 1], [0, 1], record),
        Draws([0], [0], record[:-1]),
    ):
        with pytest.raises(ValueError, match=r"draw|sampling record"):
            native("portable", logits, draws)
