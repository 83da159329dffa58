"""A recording's chunks go through an engine with prepared answers and become its transcript."""

import itertools
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
import pytest

from galley.errors import EngineError, ModelError, RequestError
from galley.speech.fallback import compression_ratio, loops
from galley.speech.options import LiveOptions, QualityRules, TranscribeOptions
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output, Tokens
from tests.payloads import spoken
from tests.speech import tiny
from tests.speech.answers import DE, EN, EOT, SOT, at, model_info, place, says, to
from tests.speech.session_driver import Driver, chunk
from tests.speech.tiny import token_id

ENGLISH = TranscribeOptions(language="en")


def test_chunks_become_segments_in_order_with_the_recordings_times(tokenizer: Tokenizer) -> None:
    texts = {0.0: " one", 10.0: " two", 20.5: " three"}

    def answer(request: EngineRequest) -> Output:
        said = says(tokenizer, 0.0, texts[place(request)], 1.0, 1.0, " more", 2.0)
        return to(request, said)

    driver = Driver(tokenizer, ENGLISH, answer)
    segments = driver.run([chunk(start, start + 4) for start in texts])
    assert [(s.id, s.start, s.end, s.text) for s in segments] == [
        (0, 0.0, 1.0, " one"), (1, 1.0, 2.0, " more"),
        (2, 10.0, 11.0, " two"), (3, 11.0, 12.0, " more"),
        (4, 20.5, 21.5, " three"), (5, 21.5, 22.5, " more"),
    ]  # fmt: skip
    assert {s.temperature for s in segments} == {0.0}
    assert segments[0].avg_logprob == pytest.approx(-0.1)
    assert tokenizer.decode(segments[0].tokens) == " one"


@pytest.mark.parametrize(("language", "texts"), [("en", ["one", " two"]), ("zh", ["one", "two"])])
def test_words_of_two_chunks_stay_apart_whatever_the_model_begins_with(
    tokenizer: Tokenizer, language: str, texts: list[str]
) -> None:
    def answer(request: EngineRequest) -> Output:
        return to(request, says(tokenizer, 0.0, "two" if place(request) else "one", 1.0))

    driver = Driver(tokenizer, TranscribeOptions(language=language), answer)
    assert [segment.text for segment in driver.run([chunk(0, 4), chunk(10, 14)])] == texts


def test_a_request_is_what_whisper_expects(tokenizer: Tokenizer) -> None:
    driver = Driver(
        tokenizer,
        TranscribeOptions(language="de", task="translate", prompt="Kowalska"),
        lambda request: to(request, says(tokenizer, 0.0, " x", 1.0)),
    )
    driver.run([chunk(0, 4)])
    [request] = driver.requests
    previous = [token_id("<|startofprev|>"), *tokenizer.encode_plain(" Kowalska")]
    assert spoken(request).prompt == [*previous, SOT, DE, token_id("<|translate|>")]
    sampling, rules = spoken(request).sampling, spoken(request).rules
    assert rules.no_speech == (len(previous), token_id("<|nospeech|>"))
    assert rules.timestamps is not None
    assert (rules.timestamps.begin, rules.timestamps.text_end) == (at(0.0), EOT)
    assert rules.timestamps.max_initial == 50
    assert rules.suppress_tokens == tuple(tiny.generation_config()["suppress_tokens"])
    assert rules.begin_suppress_tokens == (EOT,)
    assert (sampling.temperature, sampling.max_tokens, sampling.scores) == (0.0, 32, True)
    assert sampling.num_beams == 5


def test_without_timestamps_a_chunk_is_a_segment(tokenizer: Tokenizer) -> None:
    driver = Driver(
        tokenizer,
        TranscribeOptions(language="en", timestamps=False),
        lambda request: to(request, says(tokenizer, " hello you")),
    )
    [segment] = driver.run([chunk(5, 8)])
    assert (segment.start, segment.end, segment.text) == (5.0, 8.0, " hello you")
    assert spoken(driver.requests[0]).prompt[-1] == token_id("<|notimestamps|>")
    assert spoken(driver.requests[0]).rules.timestamps is None


def test_the_language_is_detected_in_the_first_chunk_before_any_other_request(
    tokenizer: Tokenizer,
) -> None:
    def answer(request: EngineRequest) -> Output:
        if spoken(request).sampling.max_tokens == 1:
            return Output(request_id=request.id, result=Tokens(tokens=[DE]), finish_reason="length")
        return to(request, says(tokenizer, 0.0, " ja", 1.0))

    driver = Driver(tokenizer, TranscribeOptions(), answer)
    assert len(driver.run([chunk(0, 4), chunk(10, 14)])) == 2
    assert driver.session.language == "de"
    first, *others = driver.requests
    assert spoken(first).prompt == [SOT]
    assert set(spoken(first).rules.allowed_tokens) == set(
        tiny.generation_config()["lang_to_id"].values()
    )
    assert [spoken(request).prompt for request in others] == [
        [SOT, DE, token_id("<|transcribe|>")]
    ] * 2
    assert spoken(others[0]).encoder_input == spoken(first).encoder_input


def test_each_chunks_language_is_detected_where_several_are_spoken(tokenizer: Tokenizer) -> None:
    spoken_at = {0.0: DE, 10.0: EN, 20.0: DE}

    def answer(request: EngineRequest) -> Output:
        if spoken(request).sampling.max_tokens == 1:
            result = Tokens(tokens=[spoken_at[place(request)]])
            return Output(request_id=request.id, result=result, finish_reason="length")
        return to(request, says(tokenizer, 0.0, " ja", 1.0))

    driver = Driver(tokenizer, TranscribeOptions(multilingual=True), answer)
    segments = driver.run([chunk(start, start + 4) for start in spoken_at])
    assert [segment.language for segment in segments] == ["de", "en", "de"]
    assert driver.session.language in ("de", "en")
    # All languages are detected at once, and each transcript is in its chunk's language.
    assert [spoken(request).prompt for request in driver.requests[:3]] == [[SOT]] * 3
    for request in driver.requests[3:]:
        assert spoken(request).prompt == [
            SOT,
            spoken_at[place(request)],
            token_id("<|transcribe|>"),
        ]


def test_a_model_of_one_language_refuses_to_detect_others(tokenizer: Tokenizer) -> None:
    info = model_info()
    assert info.speech is not None
    english = msgspec.structs.replace(
        info, speech=msgspec.structs.replace(info.speech, languages={"<|en|>": EN})
    )
    with pytest.raises(RequestError, match="knows one language") as caught:
        Driver(tokenizer, TranscribeOptions(multilingual=True), to, info=english)  # type: ignore[arg-type]
    assert caught.value.param == "multilingual"
    with pytest.raises(RequestError, match="give one of them"):
        TranscribeOptions(language="en", multilingual=True)


def test_a_language_may_be_auto() -> None:
    assert TranscribeOptions(language=" Auto").language is None
    assert LiveOptions(language="auto").language is None


def test_a_bad_transcript_is_retried_at_a_higher_temperature(tokenizer: Tokenizer) -> None:
    good = says(tokenizer, 0.0, " good", 1.0)
    bad = {
        0.0: says(tokenizer, 0.0, " no" * 30, 1.0),
        0.2: says(tokenizer, 0.0, " guess", 1.0, score=-3.0),
    }
    driver = Driver(
        tokenizer, ENGLISH, lambda r: to(r, bad.get(spoken(r).sampling.temperature or 0.0, good))
    )
    [segment] = driver.run([chunk(0, 4)])
    assert (segment.text, segment.temperature) == (" good", 0.4)
    payloads = [spoken(request) for request in driver.requests]
    requests = [(one.sampling.temperature, one.sampling.num_beams) for one in payloads]
    assert requests == [(0.0, 5), *[(0.2, 1)] * 5, *[(0.4, 1)] * 5]
    assert len({one.encoder_input.data for one in payloads}) == 1
    assert len({request.id for request in driver.requests}) == 11
    assert len({one.sampling.seed for one in payloads}) == 5


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((-0.1, -2.0, -3.0), " no" * 30),  # repeated over and over; the others are nonsense
        ((-2.5, -1.5, -3.0), " second"),
        ((-2.5, -4.3, -2.0), " third"),
    ],
)
def test_no_attempt_gives_way_to_a_less_likely_one_that_fails_too(
    scores: tuple[float, float, float], kept: str, tokenizer: Tokenizer
) -> None:
    texts = (" no" * 30, " second", " third")
    bad = {
        temperature: says(tokenizer, 0.0, text, 1.0, score=score)
        for temperature, text, score in zip((0.0, 0.5, 1.0), texts, scores, strict=True)
    }
    options = TranscribeOptions(language="en", rules=QualityRules(temperatures=(0.0, 0.5, 1.0)))
    driver = Driver(tokenizer, options, lambda r: to(r, bad[spoken(r).sampling.temperature or 0.0]))
    [segment] = driver.run([chunk(0, 4)])
    assert segment.text == kept


def test_of_the_texts_sampled_at_a_temperature_the_likeliest_counts(tokenizer: Tokenizer) -> None:
    def answer(request: EngineRequest) -> Output:
        if not spoken(request).sampling.temperature:
            return to(request, says(tokenizer, 0.0, " worse", 1.0, score=-2.0))
        choice = int(request.id.rpartition("-")[2])
        score = -0.2 if choice == 2 else -0.5
        return to(request, says(tokenizer, 0.0, f" choice {choice}", 1.0, score=score))

    for best_of, text in ((1, " choice 0"), (5, " choice 2")):
        options = TranscribeOptions(language="en", rules=QualityRules(best_of=best_of))
        driver = Driver(tokenizer, options, answer)
        [segment] = driver.run([chunk(0, 4)])
        assert (segment.text, len(driver.requests)) == (text, 1 + best_of)


@pytest.mark.parametrize(("score", "text"), [(-1.1, " right"), (-1.3, " first")])
def test_runaway_text_loses_to_any_that_ended(
    score: float, text: str, tokenizer: Tokenizer
) -> None:
    """Samples at one temperature compete like attempts; each repetition is likelier than the last."""

    def ran_away(request: EngineRequest) -> Output:
        loop = says(tokenizer, 0.0, " s" * 100, score=-0.1)
        return to(request, msgspec.structs.replace(loop, finish_reason="length"))

    def answer(request: EngineRequest) -> Output:
        temperature = spoken(request).sampling.temperature
        if not temperature:
            return to(request, says(tokenizer, 0.0, " first", 1.0, score=-1.2))
        if temperature == 1.0 and request.id.endswith("-1"):
            return to(request, says(tokenizer, 0.0, " right", 1.0, score=score))
        return ran_away(request)

    rules = QualityRules(temperatures=(0.0, 0.5, 1.0), best_of=2)
    options = TranscribeOptions(language="en", rules=rules)
    [segment] = Driver(tokenizer, options, answer).run([chunk(0, 4)])
    assert segment.text == text
    # If all attempts repeat, the text stays: no better one is known.
    [segment] = Driver(tokenizer, options, ran_away).run([chunk(0, 4)])
    assert segment.text.startswith(" s s s")


def test_text_that_begins_after_the_audio_is_left_out(tokenizer: Tokenizer) -> None:
    """The audio lasts 2 s; the encoder's input is padded to 4."""
    said = says(
        tokenizer, 0.0, " one", 1.5, 1.5, " two", 2.5, 2.5, " bye", 3.0, 3.0, " bye", 3.5, " bye"
    )
    driver = Driver(tokenizer, ENGLISH, lambda request: to(request, said))
    segments = driver.run([chunk(10, 12)])
    assert [(s.text, s.start, s.end) for s in segments] == [
        (" one", 10.0, 11.5),
        (" two", 11.5, 12.0),
    ]


def test_silence_has_no_text(tokenizer: Tokenizer) -> None:
    driver = Driver(
        tokenizer,
        ENGLISH,
        lambda r: to(r, says(tokenizer, 0.0, " thanks", 1.0, score=-2.0, silence=0.9)),
    )
    assert driver.run([chunk(0, 4)]) == []
    assert len(driver.requests) == 1


def test_overlapping_chunks_are_joined(tokenizer: Tokenizer) -> None:
    texts = {
        0.0: says(tokenizer, 0.0, " one two three four fi", 4.0),
        3.0: says(tokenizer, 0.0, " ur five six seven", 4.0),
    }
    driver = Driver(tokenizer, ENGLISH, lambda r: to(r, texts[place(r)]))
    segments = driver.run([chunk(0, 4), chunk(3, 7, overlap=1.0)])
    # They agree only on the time; words cut in half are dropped.
    assert "".join(segment.text for segment in segments) == " one two three four five six seven"
    for segment in segments:
        assert tokenizer.decode(segment.tokens) == segment.text
        assert 0 <= segment.start < segment.end <= 7


def test_what_is_translated_is_joined_at_words_of_english(tokenizer: Tokenizer) -> None:
    texts = {
        0.0: says(tokenizer, 0.0, " the quick brown fox", 4.0),
        3.0: says(tokenizer, 0.0, " brown fox jumps over", 4.0),
    }
    options = TranscribeOptions(language="zh", task="translate")
    driver = Driver(tokenizer, options, lambda r: to(r, texts[place(r)]))
    segments = driver.run([chunk(0, 4), chunk(3, 7, overlap=1.0)])
    assert "".join(segment.text for segment in segments) == " the quick brown fox jumps over"


def test_text_conditions_later_text_if_requested(tokenizer: Tokenizer) -> None:
    def answer(request: EngineRequest) -> Output:
        return to(request, says(tokenizer, 0.0, f" at {place(request):.0f}", 1.0))

    options = TranscribeOptions(
        language="en", prompt="names", rules=QualityRules(condition_on_previous_text=True)
    )
    driver = Driver(tokenizer, options, answer)
    driver.run([chunk(0, 4), chunk(10, 14), chunk(20, 24)])
    prompts = [tokenizer.decode(spoken(request).prompt) for request in driver.requests]
    assert prompts == [" names", " names at 0", " names at 0 at 10"]


def test_hotwords_stand_before_every_chunk(tokenizer: Tokenizer) -> None:
    def answer(request: EngineRequest) -> Output:
        return to(request, says(tokenizer, 0.0, f" at {place(request):.0f}", 1.0))

    for condition, prompts in (
        (False, [" Ada names", " Ada names"]),
        (True, [" Ada names", " Ada names at 0"]),
    ):
        rules = QualityRules(condition_on_previous_text=condition)
        options = TranscribeOptions(language="en", prompt="names", hotwords="Ada", rules=rules)
        driver = Driver(tokenizer, options, answer)
        driver.run([chunk(0, 4), chunk(10, 14)])
        assert [tokenizer.decode(spoken(request).prompt) for request in driver.requests] == prompts
    long = TranscribeOptions(language="en", prompt="names " * 99, hotwords="Ada " * 99)
    driver = Driver(tokenizer, long, answer)
    driver.run([chunk(0, 4)])
    assert len(spoken(driver.requests[0]).prompt) == 32 + 3  # half of the context, and the start


def test_what_has_no_letter_is_no_text(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, ENGLISH, lambda r: to(r, says(tokenizer, 0.0, ".", 1.0)))
    assert driver.run([chunk(0, 4)]) == []


def test_text_sampled_at_a_high_temperature_conditions_nothing(tokenizer: Tokenizer) -> None:
    options = TranscribeOptions(
        language="en",
        rules=QualityRules(condition_on_previous_text=True, temperatures=(0.8,)),
    )
    driver = Driver(tokenizer, options, lambda r: to(r, says(tokenizer, 0.0, " hm", 1.0)))
    driver.run([chunk(0, 4), chunk(10, 14)])
    assert spoken(driver.requests[1]).prompt[0] == SOT


def test_segments_come_as_soon_as_they_are_certain(tokenizer: Tokenizer) -> None:
    driver = Driver(
        tokenizer, ENGLISH, lambda r: to(r, says(tokenizer, 0.0, " x", 1.0)), max_chunks=2
    )
    session = driver.session
    features = np.zeros((4, tiny.MELS), np.float32)
    session.add(chunk(0, 4), features)
    assert session.has_room
    [request] = session.requests()
    session.take(driver.answer(request))
    assert session.segments() == []  # the next chunk may overlap this one
    session.add(chunk(10, 14), features)
    assert not session.has_room
    assert [segment.start for segment in session.segments()] == [0.0]
    assert session.has_room


def test_an_engine_that_gives_up_is_an_error(tokenizer: Tokenizer) -> None:
    driver = Driver(
        tokenizer,
        ENGLISH,
        lambda r: Output(request_id=r.id, finish_reason="error", error="out of luck"),
    )
    with pytest.raises(EngineError, match="out of luck"):
        driver.run([chunk(0, 4)])


def test_what_the_model_does_not_know_is_refused(tokenizer: Tokenizer) -> None:
    def driver(options: TranscribeOptions) -> Driver:
        return Driver(tokenizer, options, lambda request: Output(request_id=request.id))

    with pytest.raises(RequestError, match="does not support french; it supports de, en, zh"):
        driver(TranscribeOptions(language="fr"))
    text_model = msgspec.structs.replace(model_info(), speech=None)
    with pytest.raises(ModelError, match="tiny is a text model"):
        SpeechTokens(text_model, tokenizer)


def segment_cases() -> Iterator[tuple[list[str | float], list[tuple[float, float, str]]]]:
    """Yield (the model's output, its meaning); after openai/whisper's transcribe.py."""
    yield [0.0, " a", 1.0, 1.0, " b", 2.0], [(0.0, 1.0, " a"), (1.0, 2.0, " b")]
    yield [0.0, " a", 1.0, 1.4, " b"], [(0.0, 1.0, " a"), (1.4, 3.0, " b")]
    yield [" a"], [(0.0, 3.0, " a")]
    yield [0.5, " a", 3.5], [(0.5, 3.0, " a")]
    yield [0.0, 1.0, 1.0, " a", 2.0], [(1.0, 2.0, " a")]
    yield [0.0], []


@pytest.mark.parametrize(("said", "meant"), list(segment_cases()))
def test_timestamps_part_segments(
    said: list[str | float], meant: list[tuple[float, float, str]], tokenizer: Tokenizer
) -> None:
    tokens = SpeechTokens(model_info(), tokenizer)
    output = says(tokenizer, *said)
    scores = [-0.01 * place for place in range(len(output.tokens))]
    found = tokens.transcript(output.tokens, scores, 3.0).segments
    assert [(round(p.start, 3), p.end, tokenizer.decode(p.tokens)) for p in found] == meant
    for segment in found:
        for token, score in zip(segment.tokens, segment.scores, strict=True):
            assert output.tokens[scores.index(score)] == token


def test_an_early_checkpoints_tokens_are_found_by_their_names(tokenizer: Tokenizer) -> None:
    info = model_info()
    assert info.speech is not None
    silent = msgspec.structs.replace(info.speech, previous_token=None, no_timestamps_token=None)
    tokens = SpeechTokens(msgspec.structs.replace(info, speech=silent), tokenizer)
    assert tokens.speech == info.speech


def test_compression_ratio_is_zlibs() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("no " * 50) > 10
    assert compression_ratio("My broadband keeps dropping every evening.") < 1


PLEDGE = " Ask what you can do for your country. Ask not. Okay. And so my fellow Americans."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Okay.",
        PLEDGE * 2,
        PLEDGE * 2 + " Ask not. Ask not. What your country can do for you." + PLEDGE,
        "It rained. " + PLEDGE + " No, no, no." + PLEDGE,
    ],
)
def test_what_people_say_again_is_no_loop(text: str) -> None:
    assert not loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "Thank you. " * 15,
        " ha" + "a" * 200,
        PLEDGE + " I'm sorry." * 12,
        " I'm sorry, I'm sorry. I'm SORRY!" + " Okay.",
        PLEDGE * 3,
        "谢谢大家。" * 10,
    ],
)
def test_a_phrase_that_follows_on_itself_is_a_loop(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    ("first", "reason", "again"),
    [
        (" and so. on it goes." * 2 + " no." + " and so. on it goes." * 2, "stop", False),
        (" and so. on it goes." * 2 + " no." + " and so. on it goes." * 2, "length", True),
        (" no" * 30, "stop", True),
    ],
)
def test_a_text_that_compresses_is_tried_again_if_it_loops_or_was_cut_off(
    first: str, reason: Literal["stop", "length"], again: bool, tokenizer: Tokenizer
) -> None:
    texts = itertools.chain([first], itertools.repeat(" fine"))

    def answer(request: EngineRequest) -> Output:
        output = to(request, says(tokenizer, 0.0, text := next(texts), 1.0))
        return output if text == " fine" else msgspec.structs.replace(output, finish_reason=reason)

    rules = QualityRules(temperatures=(0.0, 0.2), compression_ratio_threshold=1.2)
    assert compression_ratio(first) > 1.2
    driver = Driver(tokenizer, TranscribeOptions(language="en", rules=rules), answer)
    [segment] = driver.run([chunk(0, 4)])
    assert segment.text == (" fine" if again else first)
