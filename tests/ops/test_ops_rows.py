"""Native reductions over logits against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from galley import _native
from galley.ops import rows
from tests.thorough import examples

EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38]


def row_of(length: int, seed: int, kinds: int) -> Any:
    """Return random logits; the fewer ``kinds`` of value, the more ties and edges."""
    rng = np.random.default_rng(seed)
    if kinds == 0:
        return rng.normal(0, 4, length).astype(np.float32)
    return rng.choice([*EDGES, *rng.normal(0, 4, kinds)], length).astype(np.float32)


ROWS = st.builds(row_of, st.integers(1, 3000), st.integers(0, 2**32), st.integers(0, 20))


@settings(max_examples=examples(300))
@given(row=ROWS, count=st.integers(0, 4000))
def test_best_ids_are_those_of_a_stable_sort(row: Any, count: int) -> None:
    expected = np.argsort(-row, kind="stable")[:count]
    for isa in _native.supported_isas():
        ids = np.empty(len(expected), dtype=np.int64)
        _native.top_k(row, isa, ids)
        assert ids.tolist() == expected.tolist()
    assert rows.top_k(row, count).tolist() == expected.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_native", None)
        assert rows.top_k(row, count).tolist() == expected.tolist()


@settings(max_examples=examples(300))
@given(row=ROWS)
def test_exp_sums_are_those_of_numpy(row: Any) -> None:
    row = np.where(np.isfinite(row) | (row == -np.inf), row, np.float32(0))
    most = float(row.max())
    if not np.isfinite(most):
        return
    expected = np.exp(row.astype(np.float64) - most).sum()
    for isa in _native.supported_isas():
        assert _native.sum_exp(row, most, isa) == pytest.approx(expected, rel=1e-14), isa
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_native", None)
        assert rows.logsumexp(row) == pytest.approx(most + np.log(expected), rel=1e-14)


@given(hnp.arrays(np.float32, 8, elements=st.floats(-800, 0, width=32)))
def test_each_exponential_is_right_to_the_last_bits(x: Any) -> None:
    alone = np.full(1024, -np.inf, dtype=np.float32)
    for value in x:
        alone[5] = value
        for isa in _native.supported_isas():
            exact = np.exp(np.float64(value)) if value >= -708 else 0.0
            assert _native.sum_exp(alone, 0.0, isa) == pytest.approx(exact, rel=4e-16, abs=0.0)


def test_sizes_are_checked() -> None:
    row = np.zeros(5, dtype=np.float32)
    with pytest.raises(ValueError, match="more ids"):
        _native.top_k(row, "portable", np.empty(6, dtype=np.int64))
    with pytest.raises(TypeError):
        _native.top_k(row.astype(np.float16), "portable", np.empty(1, dtype=np.int64))
