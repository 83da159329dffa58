"""Redaction of transcripts: text, words, token ids and audio use one list of spans."""

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.errors import RequestError
from galley.redact.spans import KINDS
from galley.speech.audio import SAMPLE_RATE, Recording
from galley.speech.redacted_audio import write_redacted
from galley.speech.redaction import Passage, Redactor, check_kinds, redacted
from galley.speech.results import Segment, Word


def segment(text: str, start: float = 0.0, *, aligned: bool = True) -> Segment:
    """Return a segment of one second per word."""
    words = [
        Word(f" {word}", start + at, start + at + 1, 0.9 if aligned else None)
        for at, word in enumerate(text.split())
    ]
    return Segment(
        id=0,
        start=start,
        end=start + len(words),
        text=f" {text}",
        tokens=(1, 2),
        words=tuple(words),
    )


def texts(segments: Sequence[Segment]) -> list[str]:
    return [one.text.strip() for one in segments]


def test_a_number_over_three_segments_is_one_label() -> None:
    turns = [
        segment("My card is 4111 1111", 0.0),
        segment("okay.", 5.0),
        segment("1111 1111 thank you", 6.0),
    ]
    redactor = Redactor(KINDS)
    found = [*(one for turn in turns for one in redactor.take(turn)), *redactor.end()]
    assert texts(found) == ["My card is [CARD]", "thank you"]
    assert [word.text.strip() for one in found for word in one.words or ()] == [
        "My", "card", "is", "[CARD]", "thank", "you"
    ]  # fmt: skip
    assert [one.tokens for one in found] == [(), ()], "token ids spell the number"
    assert redactor.passages == [Passage("card", 2.85, 8.15)]


@pytest.mark.parametrize(
    "text", ["one two three four five six seven eight", "12 Main Street", "3 1 4 1 5 9 okay 2 6 5"]
)
def test_digits_without_end_are_removed_in_parts(text: str) -> None:
    redactor = Redactor(KINDS)
    said = [segment(" ".join(3 * [text]), 30.0 * at) for at in range(1, 100)]
    turns = [segment("my account number is"), *said]
    found: list[Segment] = []
    waiting = longest = 0
    for turn in turns:
        final = redactor.take(turn)
        found += final
        waiting = 0 if final else waiting + 1
        longest = max(longest, waiting)
    found += redactor.end()
    assert 3 * len(text) * longest < 4000, "each further segment costs as much as all that wait"
    left = " ".join(texts(found)).replace("my account number is", "")
    assert not set(text.split()) & set(left.split()), left


def test_a_transcript_without_spans_is_unchanged() -> None:
    turns = [segment("the parcel came late"), segment("in March", 4.0)]
    assert redacted(turns, KINDS) == turns


def test_without_word_times_the_whole_segment_is_the_passage() -> None:
    redactor = Redactor(KINDS)
    redactor.take(segment("write to jo@example.org please", 10.0, aligned=False))
    redactor.end()
    assert redactor.passages == [Passage("email", 9.85, 14.15)]


def test_a_name_stays_redacted_long_after_its_introduction() -> None:
    filler = [segment("and so it goes on and on " * 10, 100.0 * at) for at in range(1, 5)]
    turns = [segment("My name is Mary Jones."), *filler, segment("Is Mary there", 900.0)]
    redactor = Redactor(KINDS)
    found = [*(one for turn in turns for one in redactor.take(turn)), *redactor.end()]
    assert len(found) > 2
    assert "Mary" not in " ".join(texts(found))


_PIECES = st.lists(
    st.sampled_from([
        "my card is", "4111 1111", "1111 1111", "okay", "four one one one", "double one", "thanks.",
        "the order number is", "call me on", "415", "555", "0132", "My name is Ann Lee", "Ann",
    ]),
    max_size=24,
)  # fmt: skip


@settings(deadline=None)
@given(_PIECES)
def test_a_stream_removes_what_the_whole_transcript_removes(pieces: list[str]) -> None:
    turns = [segment(piece, 10.0 * at) for at, piece in enumerate(pieces)]
    redactor = Redactor(("card", "phone"))
    stream = [*(one for turn in turns for one in redactor.take(turn)), *redactor.end()]
    assert texts(stream) == texts(redacted(turns, ("card", "phone")))
    assert "4111 1111 1111 1111" not in " ".join(texts(stream))


def test_kinds_selected_by_name() -> None:
    assert check_kinds(["all"]) == KINDS
    assert check_kinds(["phone", "card"]) == ("card", "phone")
    with pytest.raises(RequestError, match="unknown kind 'iban' to redact"):
        check_kinds(["iban"])


def tone(seconds: float) -> bytes:
    times = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (np.sin(2 * np.pi * 220 * times) * 16_000).astype("<i2").tobytes()


def recording(path: Path, seconds: float) -> Recording:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(tone(seconds))
    return Recording(path)


def test_passages_are_gone_from_the_audio_and_the_rest_stays(tmp_path: Path) -> None:
    passages = [Passage("card", 0.5, 1.0), Passage("name", 2.9, 4.0)]
    target = tmp_path / "clean.wav"
    write_redacted(recording(tmp_path / "call.wav", 3.0), passages, target)
    clean, original = Recording(target), Recording(tmp_path / "call.wav")
    after, before = (np.concatenate(list(one)) for one in (clean, original))
    assert np.abs(before).max() > 0.4
    assert len(after) == len(before)
    for start, end in ((0.5, 1.0), (2.9, 3.0)):
        part = slice(int(start * SAMPLE_RATE), int(end * SAMPLE_RATE))
        assert not after[part].any()
    kept = slice(int(1.1 * SAMPLE_RATE), int(2.8 * SAMPLE_RATE))
    np.testing.assert_allclose(after[kept], before[kept], atol=1e-4)


@pytest.mark.parametrize("passage", [Passage("card", 1.0, 1.0), Passage("card", 7.0, 8.0)])
def test_audio_is_refused_if_a_passage_cannot_be_located(tmp_path: Path, passage: Passage) -> None:
    target = tmp_path / "clean.wav"
    with pytest.raises(RequestError, match="cannot be located in the audio"):
        write_redacted(recording(tmp_path / "call.wav", 2.0), [passage], target)
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
