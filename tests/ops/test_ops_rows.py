"""Native reductions over logits against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from galley import _native
from galley.ops import rows

EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38]


def row_of(dtype: Any, length: int, seed: int, kinds: int) -> Any:
    """Random logits; the fewer ``kinds`` of value, the more ties and edges."""
    rng = np.random.default_rng(seed)
    if kinds == 0:
        return rng.normal(0, 4, length).astype(dtype)
    return rng.choice([*EDGES, *rng.normal(0, 4, kinds)], length).astype(dtype)


ROWS = st.builds(
    row_of,
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 3000),
    st.integers(0, 2**32),
    st.integers(0, 20),
)


@settings(max_examples=300)
@given(row=ROWS, count=st.integers(0, 4000))
def test_best_ids_are_those_of_a_stable_sort(row: Any, count: int) -> None:
    expected = np.argsort(-row, kind="stable")[:count]
    assert rows.best(row, count).tolist() == expected.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_native", None)
        assert rows.best(row, count).tolist() == expected.tolist()


@settings(max_examples=300)
@given(row=ROWS, temperature=st.floats(1e-3, 1e3))
def test_exp_sums_are_those_of_numpy(row: Any, temperature: float) -> None:
    row = np.where(np.isfinite(row) | (row == -np.inf), row, 0).astype(row.dtype)
    most = float(row.max())
    if not np.isfinite(most):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_native", None)
        expected = rows.exp_sums(row, most, temperature)
    assert len(expected) == -(-len(row) // rows.EXP_BLOCK)
    for isa in _native.supported_isas():
        got = np.empty_like(expected)
        _native.exp_sums(row, most, temperature, isa, got)
        assert np.allclose(got, expected, rtol=1e-14, atol=1e-300), isa


@given(hnp.arrays(np.float64, 1024, elements=st.floats(-800, 0)))
def test_each_exponential_is_right_to_the_last_bits(x: Any) -> None:
    alone = np.full(1024, -np.inf)
    for value in x[:8]:
        alone[5] = value
        for isa in _native.supported_isas():
            got = np.empty(1)
            _native.exp_sums(alone, 0.0, 1.0, isa, got)
            exact = np.exp(value) if value >= -708 else 0.0
            assert got[0] == pytest.approx(exact, rel=4e-16, abs=0.0)


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 9),
    length=st.integers(1, 300),
    kinds=st.integers(0, 20),
    threads=st.integers(1, 3),
)
def test_the_greatest_of_each_row_is_that_of_numpy(
    seed: int, count: int, length: int, kinds: int, threads: int
) -> None:
    logits = row_of(np.float32, count * length, seed, kinds).reshape(count, length)
    ids = np.empty(count, dtype=np.int64)
    _native.Runtime("portable", threads, []).greatest(logits, ids)
    assert ids.tolist() == logits.argmax(axis=1).tolist()


def test_sizes_are_checked() -> None:
    assert _native.EXP_BLOCK == rows.EXP_BLOCK
    row = np.zeros(5, dtype=np.float32)
    with pytest.raises(ValueError, match="more ids"):
        _native.best(row, np.empty(6, dtype=np.int64))
    with pytest.raises(ValueError, match="wrong size"):
        _native.exp_sums(row, 0.0, 1.0, "portable", np.empty(2))
    with pytest.raises(ValueError, match="one id a row"):
        _native.Runtime("portable", 1, []).greatest(
            np.zeros((2, 5), dtype=np.float32), np.empty(1, dtype=np.int64)
        )
    with pytest.raises(TypeError):
        _native.best(row.astype(np.float16), np.empty(1, dtype=np.int64))  # type: ignore[arg-type]
