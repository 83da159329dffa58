"""Speech starts when it has lasted for a moment, and stops when nobody has spoken for long enough."""

from hypothesis import given
from hypothesis import strategies as st

from galley.speech.endpoint import Change, Started, Stopped, TurnFinder
from galley.speech.options import TurnOptions
from galley.speech.spans import FRAME, SAMPLES_PER_MS

OPTIONS = TurnOptions(prefix_padding_ms=64, silence_duration_ms=128)
PADDING = 2 * FRAME


def changes(probabilities: list[float]) -> list[tuple[int, Change]]:
    """Each with the samples that had been looked at."""
    finder = TurnFinder(OPTIONS)
    found = ((finder.feed(probability), finder.position) for probability in probabilities)
    return [(position, change) for change, position in found if change is not None]


def test_a_turn() -> None:
    heard = [0.0] * 5 + [0.9] * 6 + [0.4, 0.9] + [0.0] * 10
    assert changes(heard) == [
        (9 * FRAME, Started(5 * FRAME - PADDING)),
        (17 * FRAME, Stopped(13 * FRAME)),
    ]


def test_a_short_pause_ends_nothing() -> None:
    assert changes([0.9] * 6 + [0.0] * 3 + [0.9] * 6) == [(4 * FRAME, Started(0))]


def test_a_click_is_nothing() -> None:
    assert changes([0.9] * 3 + [0.0] * 20) == []


def test_padding_does_not_reach_into_what_was_cut() -> None:
    finder = TurnFinder(OPTIONS)
    for _ in range(5):
        finder.feed(0.9)
    finder.cut(5 * FRAME - 100)
    assert [c for _ in range(5) if (c := finder.feed(0.9))] == [Started(5 * FRAME - 100)]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.6, 1.0]), st.integers(1, 20)), max_size=20)
)
def test_starts_and_stops_take_turns_and_are_in_order(runs: list[tuple[float, int]]) -> None:
    found = changes([level for level, count in runs for _ in range(count)])
    assert all(
        isinstance(change, Started if n % 2 == 0 else Stopped)
        for n, (_, change) in enumerate(found)
    )
    places = [change.at for _, change in found]
    assert places == sorted(places)
    for position, change in found:
        assert change.at <= position
        if isinstance(change, Stopped):
            assert position - change.at >= OPTIONS.silence_duration_ms * SAMPLES_PER_MS
