"""Hallucinated text in silence is detected as in openai/whisper, dropped, and its audio decoded again."""

import msgspec
import pytest

from galley.errors import RequestError
from galley.speech.hallucination import Cut, find_invented
from galley.speech.options import QualityRules, TranscribeOptions
from galley.speech.results import Word
from galley.text.tokenizer import Tokenizer
from galley.types import Align, EngineRequest, Output
from tests.payloads import spoken
from tests.speech.aligning import heard
from tests.speech.answers import at, says, to
from tests.speech.session_driver import Driver, chunk


def said(start: float, end: float, *, probability: float = 0.9) -> list[Word]:
    """Return two words of equal length."""
    middle = (start + end) / 2
    return [Word(" a", start, middle, probability), Word(" b", middle, end, probability)]


def invented(start: float, end: float) -> list[Word]:
    return said(start, end, probability=0.05)


SPEECH = said(0.2, 1.2)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], None),
        ([SPEECH], None),
        ([SPEECH, said(8.0, 9.0)], None),
        # At the start: decoded again from where the text seemed to begin.
        ([invented(5.0, 6.0)], Cut(0, 5.0)),
        # Between speech and silence, and between two silences.
        ([SPEECH, invented(8.0, 9.0)], Cut(1, 8.0)),
        ([SPEECH, invented(8.0, 9.0), said(15.0, 16.0)], Cut(1, 8.0)),
        # Speech follows immediately, or precedes it immediately.
        ([SPEECH, invented(8.0, 9.0), said(9.2, 10.0)], None),
        ([said(4.5, 7.9), invented(8.0, 9.0), said(15.0, 16.0)], None),
        # What follows is hallucinated, too.
        ([SPEECH, invented(8.0, 9.0), invented(9.2, 10.0)], Cut(1, 8.0)),
        # Little audio is left: nothing is decoded again.
        ([SPEECH, invented(18.0, 19.5)], Cut(1, None)),
        # Words that are too short or too long count as unlikely, like improbable ones.
        ([SPEECH, said(8.0, 8.02)], Cut(1, 8.0)),
        ([SPEECH, said(8.0, 14.0)], Cut(1, 8.0)),
    ],
)
def test_invented_text_has_unlikely_words_and_silence_around(
    segments: list[list[Word]], expected: Cut | None
) -> None:
    found = find_invented(segments, seconds=20.0, window=21.0, silence=0.0, threshold=2.0)
    assert found == expected


def test_silence_before_the_input_counts() -> None:
    segments = [said(0.1, 0.4, probability=0.01), said(0.5, 1.5)]
    assert find_invented(segments, seconds=9.0, window=30.0, silence=0.0, threshold=0.5) is None
    segments[1] = said(2.5, 3.5)
    found = find_invented(segments, seconds=9.0, window=30.0, silence=0.0, threshold=0.5)
    assert found == Cut(0, 1.0)


def test_a_session_leaves_it_out_and_decodes_the_audio_again(tokenizer: Tokenizer) -> None:
    """The audio has four seconds: speech, a hallucinated phrase, and the words really spoken there."""
    first = says(tokenizer, 0.0, " hello there", 1.0, 2.6, " thanks bye", 3.6)
    tokens = first.generated.tokens
    doubtful = tokens.index(at(2.6))
    scores = [-0.1] * doubtful + [-4.0] * (len(tokens) - doubtful)
    result = msgspec.structs.replace(first.generated, scores=scores)
    first = msgspec.structs.replace(first, result=result)
    transcripts: list[EngineRequest] = []

    def answer(request: EngineRequest) -> Output:
        if isinstance(request.payload, Align):
            return heard(
                request, tokenizer, (0.4, 0.9, 3.0, 3.5)[: 4 if len(transcripts) == 1 else 2]
            )
        transcripts.append(request)
        again = says(tokenizer, 0.0, " good night", 0.9)
        return to(request, first if len(transcripts) == 1 else again)

    options = TranscribeOptions(
        language="en",
        speech=None,
        hallucination_silence_threshold=0.5,
        rules=QualityRules(log_prob_threshold=None),
    )
    driver = Driver(tokenizer, options, answer)
    segments = driver.run([chunk(0, 4, speech=4)])
    assert [segment.text for segment in segments] == [" hello there", " good night"]
    assert segments[1].start >= 1.0
    assert {segment.words for segment in segments} == {None}  # they were not requested
    assert len(transcripts) == 2
    assert spoken(transcripts[0]).encoder_input != spoken(transcripts[1]).encoder_input


@pytest.mark.parametrize("value", [-1.0, float("nan"), "2"])
def test_a_threshold_out_of_range_is_named(value: float) -> None:
    with pytest.raises(RequestError) as caught:
        TranscribeOptions(hallucination_silence_threshold=value)
    assert caught.value.param == "hallucination_silence_threshold"
