"""Pauses of a live stream: what was said so far, whether it goes on, and when a turn ends."""

import dataclasses

import numpy as np
import pytest

from galley.speech.live_events import (
    Committed,
    Completed,
    Paused,
    Resumed,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.options import LiveOptions, TurnOptions
from galley.speech.segmenter import VAD_FRAME
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.payloads import spoken
from tests.speech.answers import says, to
from tests.speech.live_driver import ENGLISH, Driver, Word, audio_range, speech

PATIENT = LiveOptions(
    language="en", turns=TurnOptions(silence_duration_ms=4_000), pauses=True, settle_ms=128
)


def paused_at(driver: Driver) -> list[tuple[int, str, int]]:
    return [(e.turn, e.text, e.at_ms) for e in driver.events if isinstance(e, Paused)]


def kinds(driver: Driver) -> list[type]:
    wanted = (SpeechStarted, Paused, Resumed, SpeechStopped, Committed, Completed)
    return [type(event) for event in driver.of(*wanted)]


def test_a_pause_has_the_words_so_far_and_ends_when_speech_goes_on(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two three", 1.0, "four five"), options=PATIENT)
    driver.play(8)
    [(_, first, at), (_, second, _)] = paused_at(driver)
    assert (first, second) == ("one two three", "one two three four five")
    [started] = [e for e in driver.events if isinstance(e, SpeechStarted)]
    assert started.at_ms + 300 < at < started.at_ms + 2_500
    assert kinds(driver) == [
        SpeechStarted, Paused, Resumed, Paused, SpeechStopped, Committed, Completed,
    ]  # fmt: skip
    assert driver.texts() == ["one two three four five"]


def test_a_short_pause_is_none(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two", 0.096, "three"), options=PATIENT)
    driver.play(2.6)
    assert [text for _, text, _ in paused_at(driver)] == ["one two three"]
    assert Resumed not in kinds(driver)


@pytest.mark.parametrize("silence_ms", [0, 600])
def test_a_turn_ends_after_as_much_silence_as_it_is_given(
    tokenizer: Tokenizer, silence_ms: int
) -> None:
    driver, played_ms = Driver(tokenizer, speech("one two"), options=PATIENT), 0
    while not paused_at(driver):
        driver.play(0.1)
        played_ms += 100
    [(turn, text, at)] = paused_at(driver)
    driver.session.end_after(turn, silence_ms)
    driver.play(1.0)
    [stopped] = [e for e in driver.events if isinstance(e, SpeechStopped)]
    # The detector has frames of 32 ms.
    expected = max(at + silence_ms, played_ms)
    assert expected - 32 <= stopped.at_ms <= expected + 32
    assert driver.texts() == [text] == ["one two"]
    requests = len(driver.listener.requests)
    driver.play(5)
    assert len(driver.listener.requests) == requests
    driver.session.end_after(turn, 0)  # too late: nothing happens
    assert kinds(driver).count(SpeechStopped) == 1


def test_a_turn_may_be_given_more_silence_than_others(tokenizer: Tokenizer) -> None:
    short = dataclasses.replace(PATIENT, turns=TurnOptions(silence_duration_ms=600))
    driver = Driver(tokenizer, speech("one two", 1.5, "three", 1.5, "four"), options=short)
    while not paused_at(driver):
        driver.play(0.1)
    driver.session.end_after(0, 3_000)
    driver.play(8)
    assert driver.texts() == ["one two three", "four"]


def test_what_is_decided_in_a_pause_ends_with_it(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two", 1.0, "three", 1.5, "four"), options=PATIENT)
    while not paused_at(driver):
        driver.play(0.1)
    driver.session.end_after(0, 1_200)  # speech goes on before
    driver.session.end_after(1, 0)  # another turn
    driver.play(8)
    assert driver.texts() == ["one two three four"]


def test_a_cleared_turn_is_not_paused(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two"), options=PATIENT)
    while not paused_at(driver):
        driver.play(0.1)
    driver.session.clear()
    driver.session.end_after(0, 0)
    driver.play(5)
    assert kinds(driver) == [SpeechStarted, Paused, Resumed]


def test_only_those_who_want_pauses_get_them(tokenizer: Tokenizer) -> None:
    quiet = dataclasses.replace(PATIENT, pauses=False)
    for options in (quiet, ENGLISH):
        driver = Driver(tokenizer, speech("one two", 1.0, "three"), options=options)
        driver.play(6)
        assert Paused not in kinds(driver)


def test_every_order_of_pauses_and_words_keeps_the_text(tokenizer: Tokenizer) -> None:
    draw = np.random.default_rng(5)
    for _ in range(8):
        parts: list[str | float] = []
        for word in ["one", "two", "three", "four", "five"]:
            parts += [word, float(draw.choice([0.1, 0.3, 0.5, 0.9]))]
        words: list[Word] = speech(*parts[:-1])
        driver = Driver(tokenizer, words, options=PATIENT, delay=int(draw.integers(0, 4)))
        driver.play(14)
        assert driver.texts() == ["one two three four five"]
        last = paused_at(driver)[-1]
        assert last[1] == "one two three four five"
        wanted = [kind for kind in kinds(driver) if kind in (Paused, Resumed)]
        assert wanted[:-1:2] == [Paused] * (len(wanted) // 2)
        assert wanted[1::2] == [Resumed] * (len(wanted) // 2)


@pytest.mark.parametrize("delay", [1, 8])
def test_no_long_silence_is_within_the_audio_of_a_request(tokenizer: Tokenizer, delay: int) -> None:
    """A model may transcribe only what comes before it, so the words after it would be lost."""
    words = speech("one two", 0.9, "three", 1.4, "four five")
    driver = Driver(tokenizer, words, options=PATIENT, delay=delay)
    driver.play(16)
    assert driver.texts() == ["one two three four five"]
    assert paused_at(driver)[-1][1] == "one two three four five"
    for start, end in map(audio_range, driver.listener.requests):
        for before, after in ((words[1], words[2]), (words[2], words[3])):
            assert not (start < before.end and end > after.start)


def test_a_click_does_not_divide_or_resume_a_turn(tokenizer: Tokenizer) -> None:
    words = speech("one two", 1.0, "three", 2.0)
    click = Word("", words[-1].end + 12_810, words[-1].end + 12_900)
    driver = Driver(tokenizer, [*words, click], options=PATIENT)
    driver.play(12)
    assert driver.texts() == ["one two three"]
    assert kinds(driver).count(Resumed) == 1
    assert all(audio_range(one)[1] < click.start for one in driver.listener.requests)


def test_a_pause_is_reported_when_its_words_are_certain(tokenizer: Tokenizer) -> None:
    """The first transcript of the pause is poor; the final one, at another temperature, is not."""
    poor, good = says(tokenizer, " won too", score=-3.0), says(tokenizer, " one two")

    def answer(request: EngineRequest) -> Output:
        return to(request, good if spoken(request).sampling.temperature else poor)

    driver = Driver(tokenizer, speech("one two"), answer, options=PATIENT)
    while not paused_at(driver):
        driver.play(0.1)
    assert [text for _, text, _ in paused_at(driver)] == ["one two"]
    driver.session.end_after(0, 0)
    driver.play(0.1)
    assert driver.texts() == ["one two"]


def test_a_click_hides_no_pause(tokenizer: Tokenizer) -> None:
    """Whenever it comes: before the transcript of the words, with it or after it."""
    poor, good = says(tokenizer, " won too", score=-3.0), says(tokenizer, " one two")

    def answer(request: EngineRequest) -> Output:
        return to(request, good if spoken(request).sampling.temperature else poor)

    words = speech("one two")
    for frame in range(14, 40):
        start = (words[-1].end // VAD_FRAME + frame) * VAD_FRAME + 100
        click = Word("", start, start + 90)
        driver = Driver(tokenizer, [*words, click], answer, options=PATIENT, delay=1)
        driver.play(4)
        assert [text for _, text, _ in paused_at(driver)] == ["one two"], frame


def test_new_options_undo_what_was_decided_in_a_pause(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two"), options=PATIENT)
    while not paused_at(driver):
        driver.play(0.1)
    driver.session.end_after(0, 3_900)
    driver.session.configure(
        dataclasses.replace(PATIENT, turns=TurnOptions(silence_duration_ms=600))
    )
    driver.play(1.2)
    assert driver.texts() == ["one two"]
