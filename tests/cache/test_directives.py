"""Cache control by request headers."""

import math

import pytest

from galley.cache.directives import NO_DIRECTIVES, Outcome, read_directives
from galley.errors import RequestError


def test_no_header_means_defaults() -> None:
    assert read_directives({"accept": "*/*"}) is NO_DIRECTIVES


def test_directives_are_read_in_any_case_and_order() -> None:
    directives = read_directives({"cache-control": 'No-Store , MAX-AGE="60",private, no-cache'})
    assert (directives.reads, directives.writes, directives.max_age) == (False, False, 60)
    assert read_directives({"cache-control": "no-transform"}).max_age == math.inf


@pytest.mark.parametrize("value", ["-1", "1.5", "", "9" * 11, "\u0661"])
def test_times_are_whole_seconds(value: str) -> None:
    for headers in ({"cache-control": f"max-age={value}"}, {"x-galley-cache-ttl": value}):
        with pytest.raises(RequestError, match="whole seconds"):
            read_directives(headers)


@pytest.mark.parametrize(
    ("hits", "misses", "bypassed", "word"),
    [(1, 0, 0, "hit"), (2, 1, 0, "miss"), (0, 0, 3, "bypass"), (1, 0, 1, "miss")],
)
def test_a_header_states_what_happened(hits: int, misses: int, bypassed: int, word: str) -> None:
    outcome = Outcome(hits=hits, misses=misses, bypassed=bypassed, age=3.7)
    assert outcome.headers()["x-galley-cache"] == word
    assert outcome.headers().get("x-galley-cache-age") == ("3" if word == "hit" else None)


def test_headers_of_many_texts_stay_short() -> None:
    assert len(Outcome(hits=500, keys=["ab" * 16] * 500).headers()["x-galley-cache-key"]) < 600
