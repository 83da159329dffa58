"""A live session's requests to the engine: audio, prompts, temperatures, and the cuts of long speech."""

import msgspec
import pytest

from galley.errors import RequestError
from galley.speech.live_events import (
    Delta,
    Interim,
)
from galley.speech.options import LiveOptions, QualityRules
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output, Tokens
from tests.payloads import spoken
from tests.speech.answers import EOT, RATE, SOT, says, to
from tests.speech.live_driver import (
    INPUT_SAMPLES,
    Driver,
    Listener,
    audio_range,
    given_text,
    speech,
)
from tests.speech.tiny import token_id


def test_a_long_utterance_is_cut_at_its_pauses_and_no_word_is_lost_or_doubled(
    tokenizer: Tokenizer,
) -> None:
    counted = [f"{a}{b}" for a in "abcdefgh" for b in "klmnopq"]
    parts: list[str | float] = []
    for number, word in enumerate(counted):
        parts += [word, 0.16] if number % 6 == 5 else [word]
    driver = Driver(tokenizer, speech(*parts))
    driver.play(26)
    driver.drain()
    assert driver.texts() == [" ".join(counted)]
    assert driver.most_held < INPUT_SAMPLES + 3 * RATE


def test_an_utterance_whose_text_leaves_no_room_is_cut(tokenizer: Tokenizer) -> None:
    counted = [f"w{n}" for n in range(40)]
    driver = Driver(tokenizer, speech(" ".join(counted), length=0.2), context=64)
    driver.play(11)
    driver.drain()
    assert driver.texts() == [" ".join(counted)]


def test_what_was_cut_is_interim_no_more(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech(" ".join(f"w{n}" for n in range(40)), length=0.2), context=64)
    for _ in range(110):
        driver.play(0.1)
        final = "".join(event.text for event in driver.events if isinstance(event, Delta))
        guesses = [event.text for event in driver.events if isinstance(event, Interim)]
        assert not set(final.split()) & set("".join(guesses[-1:]).split())


def test_further_temperatures_decode_the_same_audio(tokenizer: Tokenizer) -> None:
    counted = [f"w{n}" for n in range(40)]
    # Each pause is longer than the earlier ones, so more audio has a better place to cut.
    parts = [part for n, word in enumerate(counted) for part in (word, 0.03 + 0.007 * n)]
    words = speech(*parts, length=0.2)
    listener = Listener(tokenizer, words)
    tried: list[tuple[float, tuple[int, int]]] = []

    def answer(request: EngineRequest) -> Output:
        tried.append((spoken(request).sampling.temperature or 0.0, audio_range(request)))
        output = listener(request)
        start, end = tried[-1][1]
        is_head = end - start > 2 * RATE and not given_text(request, tokenizer)
        if tried[-1][0] or not is_head:
            return output
        worse = msgspec.structs.replace(output.generated, scores=[-3.0] * len(output.tokens))
        return msgspec.structs.replace(output, result=worse)

    # The final text leaves no room for more, and the utterance grows while its head is decoded.
    driver = Driver(tokenizer, words, answer, delay=8, context=64)
    driver.play(18)
    driver.drain()
    assert driver.texts() == [" ".join(counted)]
    again = [number for number, (temperature, _) in enumerate(tried) if temperature]
    assert again
    assert all(tried[number][1] == tried[number - 1][1] for number in again)


def test_what_is_given_to_the_decoder_is_what_is_final(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two three four five six"))
    driver.play(5)
    given_texts = [given_text(request, tokenizer) for request in driver.listener.requests]
    assert given_texts[0] == ""
    assert given_texts[-1].startswith(" one two")
    for request, before in zip(driver.listener.requests, given_texts, strict=True):
        assert spoken(request).prompt[0] == SOT
        assert spoken(request).rules.begin_suppress_tokens == (() if before else (EOT,))
        assert request.priority < 0
        assert spoken(request).sampling.num_beams == 1
        assert spoken(request).rules.timestamps is None


def test_there_is_one_request_at_a_time_however_slow_the_engine_is(tokenizer: Tokenizer) -> None:
    words = speech("one two three four five six seven eight nine")
    driver = Driver(tokenizer, words, delay=20)
    driver.play(10)
    driver.drain()
    assert driver.texts() == ["one two three four five six seven eight nine"]
    assert len(driver.listener.requests) <= 5


def test_a_slow_engine_makes_the_stream_wait(tokenizer: Tokenizer) -> None:
    words = speech(*["word"] * 200)
    driver = Driver(tokenizer, words, delay=10**9)
    driver.play(32)
    assert driver.session.has_room
    driver.play(5)
    assert not driver.session.has_room


@pytest.mark.parametrize("bad", ["silent", "repeating", "unsure", "endless"])
def test_an_unreliable_partial_transcript_is_ignored(bad: str, tokenizer: Tokenizer) -> None:
    def answer(request: EngineRequest) -> Output:
        text = " so" * 40 if bad == "repeating" else " thanks for watching"
        said = says(
            tokenizer,
            text,
            score=-0.1 if bad in ("repeating", "endless") else -2.0,
            silence=0.9 if bad == "silent" else 0.0,
        )
        if bad == "endless":
            cut = Tokens(tokens=said.tokens[:-1], scores=said.generated.scores)
            said = Output(request_id="", result=cut, finish_reason="length")
        return to(request, said)

    driver = Driver(tokenizer, speech("one two three four five six"), answer)
    driver.play(2.4)
    assert not driver.of(Delta, Interim)
    if bad == "silent":
        driver.play(2)
        assert driver.texts() == [""]


def test_the_end_is_tried_at_further_temperatures(tokenizer: Tokenizer) -> None:
    requests: list[float] = []

    def answer(request: EngineRequest) -> Output:
        requests.append(spoken(request).sampling.temperature or 0.0)
        score = -0.1 if spoken(request).sampling.temperature else -3.0
        return to(request, says(tokenizer, " good", score=score))

    driver = Driver(tokenizer, speech("one two"), answer)
    driver.play(3)
    assert driver.texts() == ["good"]
    assert requests[-2:] == [0.0, 0.2]
    assert set(requests[:-1]) == {0.0}


def test_beams_count_at_the_end(tokenizer: Tokenizer) -> None:
    options = LiveOptions(language="en", rules=QualityRules(beam_size=5))
    driver = Driver(tokenizer, speech("one two three"), options=options)
    driver.play(4)
    assert driver.texts() == ["one two three"]
    assert [spoken(request).sampling.num_beams for request in driver.listener.requests][-1] == 5
    assert {spoken(request).sampling.num_beams for request in driver.listener.requests[:-1]} == {1}


def test_the_language_is_detected_once(tokenizer: Tokenizer) -> None:
    words = speech("ja nein doch vielleicht", 0.9, "gut")
    listener = Listener(tokenizer, words)

    def answer(request: EngineRequest) -> Output:
        if spoken(request).sampling.max_tokens == 1:
            start, end = audio_range(request)
            assert end - start >= RATE
            language = Tokens(tokens=[token_id("<|de|>")])
            return Output(request_id=request.id, result=language, finish_reason="length")
        assert token_id("<|de|>") in spoken(request).prompt
        return listener(request)

    driver = Driver(tokenizer, words, answer, LiveOptions())
    driver.play(2)
    driver.session.configure(LiveOptions(interval_ms=300))  # the language stays
    assert driver.session.language == "de"
    driver.play(3)
    assert driver.texts() == ["ja nein doch vielleicht", "gut"]
    driver.session.configure(LiveOptions(language="en"))
    assert driver.session.language == "en"


def test_what_the_model_does_not_know_is_refused(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [])
    with pytest.raises(RequestError, match="does not support french"):
        driver.session.configure(LiveOptions(language="fr"))


def test_the_prompt_comes_first_then_earlier_text_if_requested(tokenizer: Tokenizer) -> None:
    rules = QualityRules(beam_size=1, condition_on_previous_text=True)
    options = LiveOptions(language="en", prompt="Kowalska", rules=rules)
    words = speech("one two", 0.9, "three")
    driver = Driver(tokenizer, words, options=options)
    driver.play(4)
    assert driver.texts() == ["one two", "three"]
    last = spoken(driver.listener.requests[-1]).prompt
    assert tokenizer.decode(last[: last.index(SOT)]) == " Kowalska one two"
