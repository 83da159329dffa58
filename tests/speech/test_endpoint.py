"""Speech starts once it has lasted a moment, and stops after a long enough silence."""

from hypothesis import given
from hypothesis import strategies as st

from galley.speech.endpoint import Boundary, Endpoint, Endpointer, Onset
from galley.speech.options import TurnOptions
from galley.speech.segmenter import SAMPLES_PER_MS, VAD_FRAME

OPTIONS = TurnOptions(prefix_padding_ms=64, silence_duration_ms=128)
PADDING = 2 * VAD_FRAME


def boundaries(probabilities: list[float]) -> list[tuple[int, Boundary]]:
    """Return each event with the number of samples processed by then."""
    endpointer = Endpointer(OPTIONS)
    found = ((endpointer.feed(probability), endpointer.position) for probability in probabilities)
    return [(position, boundary) for boundary, position in found if boundary is not None]


def test_a_turn() -> None:
    heard = [0.0] * 5 + [0.9] * 6 + [0.4, 0.9] + [0.0] * 10
    assert boundaries(heard) == [
        (7 * VAD_FRAME, Onset(5 * VAD_FRAME - PADDING)),
        (17 * VAD_FRAME, Endpoint(13 * VAD_FRAME)),
    ]


def test_a_short_pause_ends_nothing() -> None:
    assert boundaries([0.9] * 6 + [0.0] * 3 + [0.9] * 6) == [(2 * VAD_FRAME, Onset(0))]


def test_a_click_is_nothing() -> None:
    assert boundaries([0.9] + [0.0] * 20) == []


def test_padding_does_not_reach_into_what_was_cut() -> None:
    endpointer = Endpointer(OPTIONS)
    for _ in range(5):
        endpointer.feed(0.9)
    endpointer.reset(5 * VAD_FRAME - 100)
    assert [c for _ in range(5) if (c := endpointer.feed(0.9))] == [Onset(5 * VAD_FRAME - 100)]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.6, 1.0]), st.integers(1, 20)), max_size=20)
)
def test_starts_and_stops_take_turns_and_are_in_order(runs: list[tuple[float, int]]) -> None:
    found = boundaries([level for level, count in runs for _ in range(count)])
    assert all(
        isinstance(boundary, Onset if n % 2 == 0 else Endpoint)
        for n, (_, boundary) in enumerate(found)
    )
    places = [boundary.at for _, boundary in found]
    assert places == sorted(places)
    for position, boundary in found:
        assert boundary.at <= position
        if isinstance(boundary, Endpoint):
            assert position - boundary.at >= OPTIONS.silence_duration_ms * SAMPLES_PER_MS
