"""The pace is work per busy time, whatever idle time lies between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.service.pace import HALF_LIFE, Pace

SPANS = st.lists(
    st.tuples(
        st.floats(0.5, 5.0),  # busy seconds
        st.integers(1, 500),  # tokens in these
        st.floats(0.0, 5000.0),  # idle seconds afterwards
    ),
    min_size=3,
    max_size=20,
)


@given(SPANS)
def test_idle_time_does_not_count(spans: list[tuple[float, int, float]]) -> None:
    with_pauses, without = Pace(), Pace()
    for pace, pauses in ((with_pauses, True), (without, False)):
        now = 0.0
        for busy, tokens, idle in spans:
            pace.set_busy(True, now)
            now += busy
            pace.worked(tokens, now)
            pace.set_busy(False, now)
            now += idle if pauses else 0.0
            pace.worked(1000, now)  # from a batch that was not full: not informative
    assert with_pauses.tokens_per_second == pytest.approx(without.tokens_per_second)


@given(SPANS)
def test_the_pace_lies_between_the_slowest_and_the_fastest(
    spans: list[tuple[float, int, float]],
) -> None:
    pace, now = Pace(), 0.0
    for busy, tokens, idle in spans:
        pace.set_busy(True, now)
        pace.worked(tokens // 2, now + busy / 2)
        now += busy
        pace.worked(tokens - tokens // 2, now)
        pace.set_busy(False, now)
        now += idle
    assert pace.tokens_per_second is not None
    rates = [tokens / busy for busy, tokens, _ in spans]
    # Tokens count once they are done, at most a span after they were started.
    slack = 2 ** (5.0 / HALF_LIFE)
    assert min(rates) / slack <= pace.tokens_per_second <= max(rates) * slack


def test_nothing_is_predicted_before_something_was_measured() -> None:
    pace = Pace()
    pace.set_busy(True, 0.0)
    assert (pace.tokens_per_second, pace.mean_output, pace.mean_cost) == (None, None, None)
    pace.worked(50, 0.1)
    assert pace.tokens_per_second is None
    for tenth in range(2, 21):
        pace.worked(5, tenth / 10)
    assert pace.tokens_per_second == pytest.approx(72.5, rel=0.1)


def test_what_is_new_counts_more() -> None:
    pace = Pace()
    pace.set_busy(True, 0.0)
    for second in range(1, 201):
        pace.worked(100 if second <= 100 else 10, float(second))
    assert pace.tokens_per_second is not None
    assert 10 <= pace.tokens_per_second < 15
