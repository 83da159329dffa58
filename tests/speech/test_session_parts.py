"""A chunk that the model transcribes only in part: the rest of it is decoded again, until none is left."""

import numpy as np

from galley.speech.options import TranscribeOptions
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.payloads import spoken
from tests.speech import tiny
from tests.speech.answers import says, to
from tests.speech.session_driver import Driver, chunk

FRAMES_PER_SECOND = 100


def begins_at(request: EngineRequest) -> float:
    """Return where in the chunk the request's audio begins, in seconds."""
    frame = np.frombuffer(spoken(request).encoder_input.data, "<f4")[0]
    return float(frame) / FRAMES_PER_SECOND


def test_each_part_begins_where_the_one_before_it_ended(tokenizer: Tokenizer) -> None:
    """Four seconds of speech, from second 2 of the recording, transcribed in three parts."""
    found = {0.0: (" one", 1.2), 1.2: (" two", 1.0), 2.2: (" three", 1.8)}

    def answer(request: EngineRequest) -> Output:
        text, seconds = found[begins_at(request)]
        return to(request, says(tokenizer, 0.0, text, seconds))

    driver = Driver(tokenizer, TranscribeOptions(language="en"), answer)
    frames = np.arange(4 * FRAMES_PER_SECOND, dtype=np.float32)
    driver.session.add(chunk(2, 6, speech=4), np.tile(frames[:, None], tiny.MELS))
    segments = driver.run([])
    assert [begins_at(request) for request in driver.requests] == [0.0, 1.2, 2.2]
    assert [(s.start, s.end, s.text) for s in segments] == [
        (2.0, 3.2, " one"),
        (3.2, 4.2, " two"),
        (4.2, 6.0, " three"),
    ]


def test_a_part_that_is_not_transcribed_any_further_is_the_last(tokenizer: Tokenizer) -> None:
    """Steps of a tenth of a second would decode the same audio again and again."""

    def answer(request: EngineRequest) -> Output:
        return to(request, says(tokenizer, 0.0, " one", 1.2 if begins_at(request) == 0 else 0.1))

    driver = Driver(tokenizer, TranscribeOptions(language="en"), answer)
    frames = np.arange(4 * FRAMES_PER_SECOND, dtype=np.float32)
    driver.session.add(chunk(0, 4, speech=4), np.tile(frames[:, None], tiny.MELS))
    driver.run([])
    assert [begins_at(request) for request in driver.requests] == [0.0, 1.2]
