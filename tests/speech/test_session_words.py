"""Word times of a recording: one extra request per chunk, with times relative to the recording."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from galley.errors import RequestError
from galley.speech.chunks import AudioChunk
from galley.speech.options import QualityRules, TranscribeOptions
from galley.speech.results import Segment, Word
from galley.speech.segmenter import SpeechSegment
from galley.text.tokenizer import Tokenizer
from galley.types import Align, EngineRequest, Output
from tests.payloads import aligned, spoken
from tests.speech.aligning import START, heard
from tests.speech.answers import EOT, RATE, Answer, model_info, place, says, to
from tests.speech.session_driver import Driver, chunk

WORDS = TranscribeOptions(language="en", word_timestamps=True)


def answering(
    tokenizer: Tokenizer, texts: Mapping[float, Output], ends: Mapping[float, Sequence[float]]
) -> Answer:
    """Run the session; ``texts`` and ``ends`` of words are keyed by the chunk's start."""

    def answer(request: EngineRequest) -> Output:
        if isinstance(request.payload, Align):
            return heard(request, tokenizer, ends[place(request)])
        return to(request, texts[place(request)])

    return answer


def words_of(segment: Segment) -> list[tuple[str, float, float]]:
    assert segment.words is not None
    return [(word.text, word.start, word.end) for word in segment.words]


def check(segments: Sequence[Segment]) -> None:
    """Check that words are in order, in their segments, and make up all of the text."""
    words: list[Word] = []
    for segment in segments:
        assert segment.words is not None
        assert "".join(word.text for word in segment.words) == segment.text
        assert segment.words[0].start == segment.start
        assert segment.words[-1].end == segment.end
        words += segment.words
    assert all(word.start <= word.end for word in words)
    assert all(a.end <= b.start for a, b in itertools.pairwise(words))


def test_words_have_the_recordings_times(tokenizer: Tokenizer) -> None:
    texts = {
        0.0: says(tokenizer, 0.0, " one two", 1.0, 1.0, " more", 2.0, score=-0.5),
        10.0: says(tokenizer, 0.0, " three.", 3.0),
    }
    ends = {0.0: (0.3, 0.9, 1.5), 10.0: (0.8, 0.9)}
    driver = Driver(tokenizer, WORDS, answering(tokenizer, texts, ends))
    segments = driver.run([chunk(0, 4), chunk(10, 14)])
    assert [words_of(segment) for segment in segments] == [
        [(" one", 0.0, 0.3), (" two", 0.3, 0.9)],
        [(" more", 0.9, 1.5)],
        [(" three.", 10.0, 10.8)],
    ]
    check(segments)
    assert segments[0].words is not None
    assert segments[0].words[0].probability == pytest.approx(np.exp(-0.5))
    assert segments[0].avg_logprob == pytest.approx(-0.5)


def test_one_request_more_for_each_chunk(tokenizer: Tokenizer) -> None:
    """The request covers the same chunk, without previous text."""
    texts = {start: says(tokenizer, 0.0, f" at {start:.0f}", 1.0) for start in (0.0, 10.0)}
    rules = QualityRules(condition_on_previous_text=True)
    options = TranscribeOptions(language="en", word_timestamps=True, prompt="names", rules=rules)
    ends = dict.fromkeys(texts, (0.3, 0.9))
    driver = Driver(tokenizer, options, answering(tokenizer, texts, ends))
    driver.run([chunk(0, 4), chunk(10, 14)])
    requests = {(place(r), isinstance(r.payload, Align)): r for r in driver.requests}
    assert len(requests) == len(driver.requests) == 4
    for start in texts:
        words, text = requests[start, True], requests[start, False]
        said = tokenizer.encode_plain(f" at {start:.0f}")
        assert aligned(words).prompt == [*START, *said, EOT]
        assert aligned(words).encoder_input == spoken(text).encoder_input
    # The text conditions the next chunk, which does not wait for word times.
    assert [isinstance(r.payload, Align) for r in driver.requests] == [False, True, False, True]


def test_silence_is_not_aligned(tokenizer: Tokenizer) -> None:
    silent = says(tokenizer, 0.0, " thanks", 1.0, score=-2.0, silence=0.9)
    driver = Driver(tokenizer, WORDS, lambda r: to(r, silent))
    assert driver.run([chunk(0, 4)]) == []
    assert len(driver.requests) == 1


def test_no_word_lies_in_a_silence_that_was_left_out(tokenizer: Tokenizer) -> None:
    segments = (SpeechSegment(1 * RATE, 3 * RATE), SpeechSegment(30 * RATE, 32 * RATE))
    joined = AudioChunk(segments, np.zeros(4 * RATE, np.float32))
    texts = {1.0: says(tokenizer, 0.0, " one two three four", 4.0)}
    for ends, expected in (
        # The third word starts slightly before the second segment, or ends slightly after the first.
        ((0.5, 1.8, 2.6, 3.0), [(1.0, 1.5), (1.5, 2.8), (30.0, 30.6), (30.6, 31.0)]),
        ((0.5, 1.2, 2.2, 3.0), [(1.0, 1.5), (1.5, 2.2), (2.2, 3.0), (30.2, 31.0)]),
    ):
        driver = Driver(tokenizer, WORDS, answering(tokenizer, texts, {1.0: ends}))
        (segment,) = driver.run([joined])
        assert [(start, end) for _, start, end in words_of(segment)] == expected
        check([segment])


def test_the_first_word_begins_with_the_speech(tokenizer: Tokenizer) -> None:
    """It does not start in the audio kept before it; 64 ms of that are the detector's doubt."""
    speech = SpeechSegment(10 * RATE, 14 * RATE, lead=RATE // 4)
    texts = {10.0: says(tokenizer, 0.0, " one two", 4.0)}
    for ends, expected in (
        ((1.0, 2.0), [(10.186, 11.0), (11.0, 12.0)]),
        ((0.1, 2.0), [(10.186, 10.186), (10.186, 12.0)]),
    ):
        driver = Driver(tokenizer, WORDS, answering(tokenizer, texts, {10.0: ends}))
        (segment,) = driver.run([AudioChunk((speech,), np.zeros(4 * RATE, np.float32))])
        assert [(start, end) for _, start, end in words_of(segment)] == expected
        check([segment])


def test_overlapping_chunks_are_joined_by_the_times_of_their_words(tokenizer: Tokenizer) -> None:
    texts = {
        0.0: says(tokenizer, 0.0, " one two three four fi", 4.0),
        3.0: says(tokenizer, 0.0, " four five six", 4.0),
    }
    # Both chunks contain "four", the second slightly later: the next word does not start before its end.
    ends = {0.0: (1.0, 2.0, 3.1, 3.8, 4.0), 3.0: (0.74, 1.4, 2.0)}
    driver = Driver(tokenizer, WORDS, answering(tokenizer, texts, ends))
    segments = driver.run([chunk(0, 4), chunk(3, 7, overlap=1.0)])
    assert "".join(segment.text for segment in segments) == " one two three four five six"
    check(segments)
    assert words_of(segments[1]) == [(" five", 3.8, 4.4), (" six", 4.4, 5.0)]


def test_a_model_without_such_heads_is_refused(tokenizer: Tokenizer) -> None:
    info = model_info()
    assert info.speech is not None
    without = msgspec.structs.replace(info.speech, alignment_heads=())
    with pytest.raises(RequestError, match="tiny does not support word timestamps") as error:
        Driver(
            tokenizer,
            WORDS,
            lambda r: Output(request_id=r.id),
            info=msgspec.structs.replace(info, speech=without),
        )
    assert error.value.param == "timestamp_granularities"
