"""Texts in sentences and clauses, whole and as they are written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.tts.pieces import LONGEST, Pieces, is_spoken, pieces_of
from tests import thorough

TEXT = (
    "Hello there, Dr. Smith. It is 3.14 at 5 p.m. today! Is it? He said “yes.” 1. One.\n\nNo. 5 came; "
    "J. Doe, too... The U.S. army did"
)
SENTENCES = [
    "Hello there, Dr. Smith.",
    "It is 3.14 at 5 p.m. today!",
    "Is it?",
    "He said “yes.”",
    "1. One.",
    "No. 5 came; J. Doe, too...",
    "The U.S. army did",
]


def test_a_piece_is_a_sentence() -> None:
    assert pieces_of(TEXT, clause_first=False) == SENTENCES


def test_the_first_piece_may_be_a_clause() -> None:
    assert pieces_of("She said no. Then he went.", clause_first=False)[0] == "She said no."
    assert pieces_of(TEXT) == ["Hello there,", "Dr. Smith.", *SENTENCES[1:]]
    assert pieces_of("Well, that is all. Yes, it is.")[0] == "Well, that is all."


@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_text_that_is_still_being_written_has_the_same_pieces(size: int) -> None:
    pieces = Pieces(clause_first=False)
    found = [one for at in range(0, len(TEXT), size) for one in pieces.feed(TEXT[at : at + size])]
    assert len(found) >= len(SENTENCES) - 1
    assert found + pieces.end() == SENTENCES


def test_long_sentences_are_divided_at_clauses_and_words() -> None:
    clauses = pieces_of("so it goes on and on, " * 40)
    assert all(piece.endswith("on,") for piece in clauses)
    words = pieces_of("word " * 200 + "x" * 700)
    assert max(map(len, [*clauses, *words])) <= LONGEST
    assert "".join(words).replace(" ", "") == "word" * 200 + "x" * 700
    late = pieces_of("word " * 200 + "now, and then it ends.")
    assert max(map(len, late)) <= LONGEST


@pytest.mark.parametrize(
    "unit", ["Dr. ", "p.m. ", "!", "?”", "word ", "\n", ", ", "。", "a", "Hi. "]
)
def test_the_time_for_a_long_text_grows_with_its_length(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is searched for in a window; searching all of the rest took minutes for some texts."""
    windows = []

    def counted(self: Pieces, text: str) -> int | None:
        windows.append(len(text))
        return length(self, text)

    length = Pieces._length
    monkeypatch.setattr(Pieces, "_length", counted)
    text = unit * (65536 // len(unit))
    kept = "".join(c for c in "".join(pieces_of(text)) if c.isalnum())
    assert kept == "".join(c for c in text if c.isalnum())
    assert max(windows) < 2 * LONGEST


@pytest.mark.parametrize("text", ["", "  ", "...", "?!", "\n\n-\n\n"])
def test_there_is_nothing_to_say(text: str) -> None:
    assert pieces_of(text) == []


@settings(max_examples=thorough.examples(60))
@given(st.text("ab1.,;!? \n“”…", max_size=900), st.booleans())
def test_nothing_is_lost_and_no_piece_is_long(text: str, clause_first: bool) -> None:
    pieces = pieces_of(text, clause_first=clause_first)
    assert all(is_spoken(piece) and len(piece) <= LONGEST for piece in pieces)
    kept = "".join(c for c in "".join(pieces) if c.isalnum())
    assert kept == "".join(c for c in text if c.isalnum())
