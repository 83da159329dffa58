"""Other libraries can parse every caption format."""

import html
import io
import itertools
import json
from datetime import timedelta

import msgspec
import pytest
import srt
import webvtt
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.audio import Transcription, TranscriptionVerbose
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from galley.errors import RequestError
from galley.speech import captions
from galley.speech.languages import NAMES, language_code
from galley.speech.results import Info, Segment, Word
from tests.thorough import examples

SEGMENTS = (
    Segment(
        id=0, start=0.0, end=2.5, text=" Hello, this is Maria.", tokens=(1, 2), avg_logprob=-0.25
    ),
    Segment(
        id=1, start=3.0, end=3599.9996, text=" R&D <b>costs</b>\n\n100 --> 200.", temperature=0.2
    ),
    Segment(
        id=2, start=3600.0, end=360_061.007, text=" Ünïcödé 你好", words=(Word(" Ünïcödé", 1, 2),)
    ),
)
LINES = ["Hello, this is Maria.", "R&D <b>costs</b> 100 --> 200.", "Ünïcödé 你好"]
INFO = Info(task="transcribe", language="en", duration=360_061.0071, warnings=("cut off",))


def test_srt_is_read_by_srt() -> None:
    found = list(srt.parse("".join(captions.as_srt(SEGMENTS))))
    assert [caption.index for caption in found] == [1, 2, 3]
    assert [caption.content for caption in found] == [line.replace("-->", "->") for line in LINES]
    assert [(caption.start, caption.end) for caption in found] == [
        (timedelta(0), timedelta(seconds=2.5)),
        (timedelta(seconds=3), timedelta(hours=1)),
        (timedelta(hours=1), timedelta(hours=100, seconds=61, milliseconds=7)),
    ]


def test_vtt_is_read_by_webvtt() -> None:
    found = webvtt.from_buffer(io.StringIO("".join(captions.as_vtt(SEGMENTS)))).captions
    assert [html.unescape(caption.text) for caption in found] == LINES
    assert [(caption.start, caption.end) for caption in found] == [
        ("00:00:00.000", "00:00:02.500"),
        ("00:00:03.000", "01:00:00.000"),
        ("01:00:00.000", "100:01:01.007"),
    ]


def test_captions_are_parted_between_words() -> None:
    words = [
        Word(" Hello,", 0, 0.5),
        Word(" this", 0.5, 1),
        Word(" is", 1.5, 2),
        Word(" Maria.", 2, 3),
    ]
    spoken = msgspec.structs.replace(SEGMENTS[0], words=tuple(words))
    found = list(srt.parse("".join(captions.as_srt(captions.lines_of([spoken, SEGMENTS[1]], 12)))))
    assert [(c.content, c.start.total_seconds(), c.end.total_seconds()) for c in found] == [
        ("Hello, this", 0.0, 1.0),
        ("is Maria.", 1.5, 3.0),
        (LINES[1].replace("-->", "->"), 3.0, 3600.0),
    ]
    narrow = list(captions.lines_of([spoken], 3))
    assert [line.text.strip() for line in narrow] == ["Hello,", "this", "is", "Maria."]
    assert "".join(line.text for line in narrow) == spoken.text


def test_text_has_a_line_for_each_segment() -> None:
    assert "".join(captions.as_text(SEGMENTS)).splitlines() == LINES


def test_json_is_openais() -> None:
    answer = Transcription.model_validate_json(captions.as_json(SEGMENTS))
    assert answer.text == "".join(segment.text for segment in SEGMENTS).strip()


def test_verbose_json_is_openais() -> None:
    data = captions.as_verbose_json(SEGMENTS, INFO, ("segment", "word"))
    answer = TranscriptionVerbose.model_validate_json(data, strict=True)
    assert (answer.language, answer.duration) == ("english", 360_061.01)
    assert answer.segments is not None
    assert answer.words is not None
    assert [segment.text for segment in answer.segments] == [segment.text for segment in SEGMENTS]
    assert answer.segments[0].tokens == [1, 2]
    assert answer.segments[0].avg_logprob == -0.25
    assert answer.segments[1].temperature == 0.2
    assert [(word.word, word.start, word.end) for word in answer.words] == [("Ünïcödé", 1, 2)]
    assert json.loads(data)["warnings"] == ["cut off"]


def test_verbose_json_has_the_requested_granularities() -> None:
    quiet = Info(task="translate", language="xx", duration=1.0)
    plain = json.loads(captions.as_verbose_json(SEGMENTS, quiet))
    assert set(plain) == {"task", "language", "duration", "text", "segments"}
    assert "words" not in plain["segments"][0]
    words = json.loads(captions.as_verbose_json(SEGMENTS, quiet, ("word",)))
    assert set(words) == {"task", "language", "duration", "text", "words"}


def test_silence_is_an_empty_transcript() -> None:
    assert list(captions.as_srt(())) == list(captions.as_text(())) == []
    assert webvtt.from_buffer(io.StringIO("".join(captions.as_vtt(())))).captions == []
    assert json.loads(captions.as_json(())) == {"text": ""}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6), st.text(st.characters(codec="utf-8", exclude_categories=["C"]))
        )
    )
)
def test_any_text_survives(pieces: list[tuple[float, str]]) -> None:
    segments = [
        Segment(id=i, start=start, end=start + 1, text=f"x {text}")
        for i, (start, text) in enumerate(pieces)
    ]
    texts = [" ".join(segment.text.split()) for segment in segments]
    found = webvtt.from_buffer(io.StringIO("".join(captions.as_vtt(segments)))).captions
    assert [html.unescape(caption.raw_text) for caption in found] == texts
    read = list(srt.parse("".join(captions.as_srt(segments))))
    assert [caption.content for caption in read] == [text.replace("-->", "->") for text in texts]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(
        RequestError, match="unknown response_format 'docx'; supported: json, text, srt"
    ):
        captions.check_format("docx")


def test_languages_are_whispers() -> None:
    assert list(NAMES.items()) == list(LANGUAGES.items())
    for name, code in TO_LANGUAGE_CODE.items():
        assert language_code(name.title()) == code
    for code in LANGUAGES:
        assert language_code(code) == code
    assert language_code("pt-BR") == language_code("pt_br") == "pt"
    with pytest.raises(RequestError, match="unknown language 'klingon'"):
        language_code("klingon")


@given(
    st.lists(
        st.tuples(st.integers(0, 3_000), st.integers(0, 500), st.integers(0, 500)), max_size=12
    )
)
def test_each_caption_is_shown_for_a_moment_and_none_before_the_last_is_over(
    cues: list[tuple[int, int, int]],
) -> None:
    segments, at = [], 0
    for number, (gap, length, other) in enumerate(cues):
        start = at + gap * (other % 2)
        at = start + length * (other % 3 > 0)
        segments.append(Segment(id=number, start=start / 1000, end=at / 1000, text=f" {number}"))
    for shown in (
        [
            (c.start.total_seconds(), c.end.total_seconds())
            for c in srt.parse("".join(captions.as_srt(segments)))
        ],
        [
            (seconds(c.start), seconds(c.end))
            for c in webvtt.from_buffer(io.StringIO("".join(captions.as_vtt(segments)))).captions
        ],
    ):
        assert len(shown) == len(segments)
        assert all(end - start >= 0.199 for start, end in shown)
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(shown))
        for segment, (start, end) in zip(segments, shown, strict=True):
            assert start >= segment.start - 1e-6
            assert end >= segment.end - 1e-6


def seconds(clock: str) -> float:
    hours, minutes, rest = clock.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)
