from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from galley.text.stops import StopScanner

SMALL = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=SMALL, stops=STOPS, cuts=st.lists(st.integers(0, 40)))
def test_any_text_in_any_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    scanner = StopScanner(stops)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [scanner.feed(text[a:b]) for a, b in pairwise(edges)]
    shown, matched = by_definition(text, stops)
    assert scanner.matched == matched
    assert "".join(parts) + scanner.finish() == shown


@given(text=SMALL, stops=STOPS)
def test_holds_back_no_more_than_could_become_a_stop(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(char) for char in text)
    if scanner.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = (text[-n:] for n in range(len(held) + 1, len(text) + 1))
        assert not any(stop.startswith(tail) for tail in longer for stop in stops)


def test_nothing_follows_a_match() -> None:
    scanner = StopScanner(["\n\n"])
    assert scanner.feed("one\n") == "one"
    assert scanner.feed("\ntwo") == ""
    assert scanner.feed("three") == ""
    assert scanner.finish() == ""
    assert scanner.matched == "\n\n"


def test_no_stops() -> None:
    scanner = StopScanner([])
    assert scanner.feed("text") + scanner.finish() == "text"


def test_work_is_linear_in_the_text() -> None:
    """The worst text for the worst stops: a quadratic scanner would take hours."""
    stops = ["a" * 1023 + chr(ord("b") + index) for index in range(16)]
    scanner = StopScanner(stops)
    text = "a" * 300_000
    shown = [scanner.feed(text[index : index + 100]) for index in range(0, len(text), 100)]
    assert sum(map(len, shown)) == len(text) - 1023
    assert len(scanner.finish()) == 1023
