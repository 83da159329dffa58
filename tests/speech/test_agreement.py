"""Text on which two consecutive transcripts agree is final; where an utterance's head ends in its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.speech.agreement import LocalAgreement, align_head, split


def heard(*texts: str, language: str = "en") -> tuple[list[str], LocalAgreement]:
    """Return the text that each transcript made final."""
    agreement = LocalAgreement()
    return [agreement.update(text, language) for text in texts], agreement


def test_two_in_a_row_make_it_final() -> None:
    shown, agreement = heard(" My broad", " My broadband keeps", " My broadband keeps dropping")
    assert shown == ["", " My", " broadband keeps"]
    assert (agreement.final, agreement.interim) == (" My broadband keeps", " dropping")


def test_a_mark_at_the_end_stays_open() -> None:
    shown, agreement = heard(" It drops.", " It drops.", " It drops, often.", " It drops, often.")
    assert shown == ["", " It drops", "", ", often"]
    assert agreement.finish(" It drops, often. ") == "."


def test_a_growing_number_is_continued() -> None:
    shown, agreement = heard(
        " It is 48", " It is 48", " It is 4821", " It is 4821.50", " It is 4821.50"
    )
    assert shown == ["", " It is 48", "", "21", ".50"]
    assert agreement.final == " It is 4821.50"


def test_doubt_breaks_the_row() -> None:
    agreement = LocalAgreement()
    agreement.update(" one", "en")
    agreement.reject()
    assert agreement.update(" one", "en") == ""
    assert agreement.update(" one", "en") == " one"


def test_without_spaces_a_character_is_a_word() -> None:
    shown, _ = heard("你好吗", "你好吧朋", "你好吧朋友", language="zh")
    assert shown == ["", "你好", "吧朋"]


TAILS = st.text("ab ,.1é-", max_size=12)


@given(st.lists(TAILS, min_size=1, max_size=8), st.sampled_from(["en", "ja"]))
def test_final_text_only_grows(tails: list[str], language: str) -> None:
    agreement, joined, before = LocalAgreement(), "", ""
    for tail in tails:
        text = agreement.final + tail
        agreed = agreement.update(text, language)
        joined += agreed
        assert joined == agreement.final
        assert text.startswith(agreement.final)
        if agreed:
            assert before.startswith(agreement.final)
        assert text.startswith(agreement.final + agreement.interim)
        before = text
    joined += agreement.finish(agreement.final + agreement.interim)
    assert joined == agreement.final


@given(st.text("ab ,.1é-\n"), st.sampled_from(["en", "ja"]))
def test_pieces_joined_are_the_text(text: str, language: str) -> None:
    assert "".join(split(text, language)) == text.rstrip()


@pytest.mark.parametrize(
    ("head", "final", "expected"),
    [
        ("one two three", "one two three four", (3, 3)),
        ("one two three four", "one two", (2, 2)),
        ("one too three", "one two three four five", (3, 3)),
        ("one two thr", "one two three four five", (3, 3)),
        ("one three", "one two three four five", (3, 2)),
        ("one and two three", "one two three four five", (3, 4)),
        ("ONE two", "one two", (2, 2)),
        ("one two", "", (0, 0)),
        ("", "one two", (0, 0)),
    ],
)
def test_a_head_ends_somewhere_in_the_text(
    head: str, final: str, expected: tuple[int, int]
) -> None:
    assert align_head(split(head, "en"), split(final, "en")) == expected
