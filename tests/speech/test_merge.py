"""Overlapping chunks are joined without losing or doubling a word."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.speech.merge import join, plain
from galley.speech.results import Word
from tests.thorough import examples


def joined(left: list[Word], right: list[Word], overlap: tuple[float, float]) -> list[str]:
    where = join(left, right, overlap)
    return [plain(word.text) for word in left[: where.keep_left] + right[where.skip_right :]]


def words(text: str, start: float = 0.0, each: float = 0.5) -> list[Word]:
    return [
        Word(f" {word}", start + i * each, start + (i + 1) * each)
        for i, word in enumerate(text.split())
    ]


class Overlapped(NamedTuple):
    said: list[Word]
    left: list[Word]
    right: list[Word]
    overlap: tuple[float, float]


@st.composite
def overlapped(draw: st.DrawFn) -> Overlapped:
    """Return words of two chunks, with rough times, half words at the cut, and other punctuation."""
    lengths = draw(st.lists(st.floats(0.2, 0.6), min_size=24, max_size=40))
    said: list[Word] = []
    end = 0.0
    for i, length in enumerate(lengths):
        name = draw(st.sampled_from(["no", "yes", "the", "account", "please"]))
        # A single word may repeat, but not a phrase of three.
        said.append(Word(f" {name}{i % 3}", end, end + length))
        end += length
    cut = draw(st.floats(end * 0.6, end * 0.8))
    overlap = (cut - 3.0, cut)

    def heard(word: Word) -> Word:
        shift = draw(st.floats(-0.15, 0.15))
        text = draw(
            st.sampled_from([word.text, word.text.upper(), word.text + ",", word.text + "."])
        )
        return Word(text, word.start + shift, word.end + shift)

    left = [heard(word) for word in said if word.end <= cut]
    right = [heard(word) for word in said if word.start >= overlap[0]]
    if draw(st.booleans()):
        left.append(Word(" acc-", left[-1].end, cut))
    if draw(st.booleans()):
        right.insert(0, Word(" -ount", overlap[0], right[0].start))
    return Overlapped(said, left, right, overlap)


@settings(max_examples=examples(300), deadline=None)
@given(overlapped())
def test_what_was_said_is_there_once(case: Overlapped) -> None:
    assert joined(case.left, case.right, case.overlap) == [plain(word.text) for word in case.said]


def test_a_repeated_word_stays_repeated() -> None:
    said = words("it is no no no no no I said no")
    assert joined(said[:7], said[3:], (1.5, 3.5)) == [plain(word.text) for word in said]


def test_the_chunk_with_more_of_a_word_keeps_it() -> None:
    left, right = words("my broad band keep"), words("band keeps dropping", start=1.0)
    assert joined(left, right, (1.0, 2.0)) == ["my", "broad", "band", "keeps", "dropping"]


def test_chunks_that_agree_on_nothing_are_joined_by_time() -> None:
    left, right = words("one two three four"), words("five six seven eight", start=1.0)
    assert joined(left, right, (1.0, 2.0)) == ["one", "two", "three", "six", "seven", "eight"]


@pytest.mark.parametrize(("left", "right"), [("", ""), ("one two", ""), ("", "one two")])
def test_a_chunk_without_words_takes_none_away(left: str, right: str) -> None:
    kept = joined(words(left), words(right, start=2.0), (2.0, 3.0))
    assert kept == (left + right).split()


@pytest.mark.parametrize(
    ("text", "expected"), [(" Hello,", "hello"), (" 5.", "5"), ("...", "..."), ("你好。", "你好")]
)
def test_plain(text: str, expected: str) -> None:
    assert plain(text) == expected
