"""Turns of a live stream and their text: final and interim text, and when a turn ends."""

import numpy as np
import pytest

from galley.errors import RequestError
from galley.speech.live_events import (
    Committed,
    Completed,
    Delta,
    Failed,
    Interim,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.options import LiveOptions
from galley.speech.segmenter import VAD_FRAME
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.payloads import spoken
from tests.speech.answers import RATE, SOT
from tests.speech.live_driver import Driver, Listener, Word, audio_range, speech


def test_words_become_final_while_they_are_said(tokenizer: Tokenizer) -> None:
    words = speech("one two three four five six seven eight")
    driver = Driver(tokenizer, words)
    driver.play(2.5)
    said = "".join(event.text for event in driver.of(Delta) if isinstance(event, Delta))
    assert said.startswith("one two")
    assert "one two three four five six seven eight".startswith(said)
    assert not driver.of(Completed, Committed)
    driver.play(2.0)
    assert driver.texts() == ["one two three four five six seven eight"]
    kinds = [type(event) for event in driver.of(SpeechStarted, SpeechStopped, Committed, Completed)]
    assert kinds == [SpeechStarted, SpeechStopped, Committed, Completed]
    [started] = driver.of(SpeechStarted)
    assert isinstance(started, SpeechStarted)
    assert 150 <= started.at_ms <= 250  # 300 ms before the speech


def test_the_last_words_need_no_further_decoding_when_silence_has_lasted(
    tokenizer: Tokenizer,
) -> None:
    driver = Driver(tokenizer, speech("one two"))
    driver.play(1.7)  # speech ends at 1.2
    decodings = len(driver.listener.requests)
    driver.play(0.2)
    assert driver.texts() == ["one two"]
    assert len(driver.listener.requests) == decodings


def test_silence_costs_nothing_and_is_not_kept(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [])
    driver.play(60)
    assert not driver.listener.requests
    assert not driver.events
    assert driver.most_held < RATE


def test_a_click_is_no_turn(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [Word("x", 32 * VAD_FRAME, 33 * VAD_FRAME)])
    driver.play(4)
    assert not driver.listener.requests
    assert not driver.events


def test_each_pause_ends_a_turn(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two three", 0.8, "four five", 0.8, "six"))
    driver.play(6)
    assert driver.texts() == ["one two three", "four five", "six"]
    assert [event.turn for event in driver.events if isinstance(event, Completed)] == [0, 1, 2]


def test_interim_text_is_what_comes_after_the_final(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two three four five six"))
    driver.play(5)
    seen, final = [], ""
    for event in driver.events:
        if isinstance(event, Delta):
            final += event.text
        elif isinstance(event, Interim):
            seen.append(final + event.text)
    whole = "one two three four five six"
    assert all(whole.startswith(text) for text in seen)
    assert [event.text for event in driver.events if isinstance(event, Interim)][-1] == ""


def test_a_turn_committed_by_the_client_has_all_its_utterances(tokenizer: Tokenizer) -> None:
    options = LiveOptions(language="en", commit_turns=False)
    driver = Driver(tokenizer, speech("one two three", 0.9, "four five six seven"), options=options)
    driver.play(3.5)
    assert not driver.of(SpeechStarted, SpeechStopped, Committed, Completed)
    driver.session.commit()
    driver.drain()
    [text] = driver.texts()
    assert text.startswith("one two three four")
    [completed] = driver.of(Completed)
    assert isinstance(completed, Completed)
    assert completed.seconds == pytest.approx(3.5)
    for _ in range(3):  # audio without any text is not kept
        driver.session.feed(np.empty(0, np.float32))
        with pytest.raises(RequestError, match="0 ms of audio"):
            driver.session.commit()
    driver.play(1)
    driver.session.commit()
    driver.drain()
    assert len(driver.texts()) == 2


def test_a_turn_committed_by_the_client_is_transcribed_as_one(tokenizer: Tokenizer) -> None:
    options = LiveOptions(language="en", commit_turns=False)
    words = speech("one two", 0.9, "three", 0.7, "four")
    driver = Driver(tokenizer, words, options=options)
    driver.play(3.8)
    driver.session.commit()
    driver.drain()
    assert driver.texts() == ["one two three four"]
    assert len({audio_range(request)[0] for request in driver.listener.requests}) == 1


def test_text_before_a_long_silence_conditions_the_turns_text_behind_it(
    tokenizer: Tokenizer,
) -> None:
    options = LiveOptions(language="en", prompt="names", commit_turns=False)
    driver = Driver(tokenizer, speech("one two", 6.0, "three"), options=options)
    driver.play(8.5)
    driver.session.commit()
    driver.drain()
    driver.play(1)
    assert driver.texts() == ["one two three"]
    last = spoken(driver.listener.requests[-1])
    before = last.prompt[: last.prompt.index(SOT)]
    assert tokenizer.decode(before) == " names one two"
    seconds = sum(b - a for a, b in map(audio_range, driver.listener.requests[-1:])) / RATE
    assert seconds < 2  # silence is not decoded


def test_a_turn_that_is_cleared_has_no_text(tokenizer: Tokenizer) -> None:
    options = LiveOptions(language="en", commit_turns=False)
    driver = Driver(tokenizer, speech("one two three four five", 0.2, "six seven"), options=options)
    driver.play(2.3)
    driver.session.clear()
    driver.play(2.0)
    driver.session.commit()
    driver.drain()
    [text] = driver.texts()
    assert text.endswith("six seven")
    assert "two" not in text


def test_what_the_engine_gives_up_fails_its_turn_alone(tokenizer: Tokenizer) -> None:
    words = speech("one two three", 0.9, "four five")
    listener = Listener(tokenizer, words)

    def answer(request: EngineRequest) -> Output:
        if audio_range(request)[0] < RATE:
            return Output(request_id=request.id, finish_reason="error", error="out of luck")
        return listener(request)

    driver = Driver(tokenizer, words, answer)
    driver.play(5)
    assert [event for event in driver.events if isinstance(event, Failed)] == [
        Failed(0, "out of luck")
    ]
    assert [(e.turn, e.text) for e in driver.events if isinstance(e, Completed)] == [
        (1, "four five")
    ]
