"""A live stream's samples go through an engine that says what it is told, and come out as final text."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.local import LocalEngine
from galley.speech.features import LogMel
from galley.speech.live import LiveSession
from galley.speech.live_events import (
    Committed,
    Completed,
    Delta,
    Failed,
    Interim,
    LiveEvent,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.options import LiveOptions, QualityRules
from galley.speech.segmenter import VAD_FRAME
from galley.speech.tokens import SpeechTokens
from galley.speech.transcribe import LiveTranscription
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.speech import tiny
from tests.speech.test_session import EOT, SOT, model_info, says, to
from tests.speech.test_session import tokenizer as tokenizer
from tests.speech.tiny import token_id

RATE = 16_000
WINDOW = tiny.WINDOW_SECONDS * RATE
BLOCK = RATE // 10
ENGLISH = LiveOptions(language="en")


@dataclass(frozen=True)
class Word:
    """What is said from one sample to another."""

    text: str
    start: int
    end: int


class Places(LogMel):
    """Features that say where in the stream a window lies: its samples are their own places."""

    def __init__(self) -> None:
        self.chunk_samples = WINDOW

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        assert 0 < len(samples) <= WINDOW
        assert samples[-1] - samples[0] == len(samples) - 1
        return np.full((2, tiny.MELS), [[samples[0]], [samples[-1] + 1]], np.float32)


@dataclass
class Said:
    """A detector that knows who speaks when."""

    words: Sequence[Word]
    position: int = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        frames = []
        end = int(samples[-1]) + 1 if len(samples) else self.position
        while self.position + VAD_FRAME <= end:
            first, beyond = self.position, self.position + VAD_FRAME
            heard = any(word.start < beyond and first < word.end for word in self.words)
            frames.append(0.9 if heard else 0.1)
            self.position = beyond
        return np.array(frames, np.float32)

    def finish(self) -> NDArray[np.float32]:
        return np.empty(0, np.float32)


def window_of(request: EngineRequest) -> tuple[int, int]:
    """First sample, and the one beyond the last."""
    assert request.encoder_input is not None
    values = np.frombuffer(request.encoder_input.data, "<f4").reshape(2, tiny.MELS)
    return int(values[0, 0]), int(values[1, 0])


def given_text(request: EngineRequest, tokenizer: Tokenizer) -> str:
    """What the decoder is to go on from."""
    begin = request.prompt.index(token_id("<|notimestamps|>")) + 1
    return tokenizer.decode(request.prompt[begin:])


Answer = Callable[[EngineRequest], Output]


@dataclass
class Listener:
    """An engine that hears every whole word of its window, none of them twice."""

    tokenizer: Tokenizer
    words: Sequence[Word]
    asked: list[EngineRequest] = field(default_factory=list)
    mishears: Callable[[str], str] = str

    def __call__(self, request: EngineRequest) -> Output:
        self.asked.append(request)
        start, end = window_of(request)
        heard = [w.text for w in self.words if w.end > start + 800 and w.end <= end]
        known = given_text(request, self.tokenizer).split()[-1:]
        rest = heard[heard.index(known[0]) + 1 :] if known and known[0] in heard else heard
        return to(
            request, says(self.tokenizer, "".join(f" {self.mishears(word)}" for word in rest))
        )


class Driver:
    """A session and an engine that takes its time: so many blocks of audio for each answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Sequence[Word],
        answer: Answer | None = None,
        options: LiveOptions = ENGLISH,
        delay: int = 1,
        context: int = 448,
    ) -> None:
        self.listener = Listener(tokenizer, words)
        self.answer = answer or self.listener
        info = msgspec.structs.replace(model_info(), max_model_len=context)
        tokens = SpeechTokens(info, tokenizer)
        self.session = LiveSession(tokens, Places(), Said(words), options, "s")
        self.events: list[LiveEvent] = []
        self.delay = delay
        self.most_held = 0
        self._place = 0
        self._running: EngineRequest | None = None
        self._left = 0

    def play(self, seconds: float) -> None:
        """So much more of the stream."""
        for _ in range(round(seconds * RATE / BLOCK)):
            self.session.feed(np.arange(self._place, self._place + BLOCK, dtype=np.float32))
            self._place += BLOCK
            self._step()

    def drain(self) -> None:
        """Until the engine has nothing to do."""
        while self._running or not self.session.idle:
            self._step()
        self.events += self.session.events()

    def _step(self) -> None:
        if self._running is not None and self._left <= 0:
            request, self._running = self._running, None
            self.session.take(self.answer(request))
        self._left -= 1
        if self._running is None and (asked := self.session.request()) is not None:
            self._running, self._left = asked, self.delay
        self.events += self.session.events()
        self.most_held = max(self.most_held, self.session.buffered_samples)

    def of(self, *kinds: type[LiveEvent]) -> list[LiveEvent]:
        return [event for event in self.events if isinstance(event, kinds)]

    def texts(self) -> list[str]:
        """Of completed turns, which must be all that was told of them."""
        told: dict[int, str] = {}
        completed = []
        for event in self.events:
            if isinstance(event, Delta):
                told[event.turn] = told.get(event.turn, "") + event.text
            elif isinstance(event, Completed):
                assert event.text == told.pop(event.turn, "")
                completed.append(event.text)
        return completed


def speech(*parts: str | float, length: float = 0.35, gap: float = 0.0) -> list[Word]:
    """Words of one length, one after another; a number is a pause in seconds."""
    words: list[Word] = []
    at = 0.5
    for part in parts:
        if isinstance(part, float):
            at += part
            continue
        for text in part.split():
            words.append(Word(text, round(at * RATE), round((at + length) * RATE)))
            at += length + gap
    return words


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


def test_the_last_words_need_no_further_look_when_silence_has_lasted(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, speech("one two"))
    driver.play(1.7)  # speech ends at 1.2
    looks = len(driver.listener.asked)
    driver.play(0.2)
    assert driver.texts() == ["one two"]
    assert len(driver.listener.asked) == looks


def test_silence_costs_nothing_and_is_not_kept(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [])
    driver.play(60)
    assert not driver.listener.asked
    assert not driver.events
    assert driver.most_held < RATE


def test_a_click_is_no_turn(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [Word("x", RATE, RATE + VAD_FRAME)])
    driver.play(4)
    assert not driver.listener.asked
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


def test_a_long_stretch_is_cut_at_its_pauses_and_no_word_is_lost_or_doubled(
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
    assert driver.most_held < WINDOW + 3 * RATE


def test_a_window_whose_text_leaves_no_room_is_cut(tokenizer: Tokenizer) -> None:
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


def test_further_temperatures_hear_the_same_window(tokenizer: Tokenizer) -> None:
    counted = [f"w{n}" for n in range(40)]
    # Each pause is longer than those before, so more audio has a better place to cut.
    parts = [part for n, word in enumerate(counted) for part in (word, 0.03 + 0.007 * n)]
    words = speech(*parts, length=0.2)
    listener = Listener(tokenizer, words)
    tried: list[tuple[float, tuple[int, int]]] = []

    def answer(request: EngineRequest) -> Output:
        tried.append((request.sampling.temperature or 0.0, window_of(request)))
        output = listener(request)
        start, end = tried[-1][1]
        is_head = end - start > 2 * RATE and not given_text(request, tokenizer)
        if tried[-1][0] or not is_head:
            return output
        return msgspec.structs.replace(output, scores=[-3.0] * len(output.tokens))

    # What is final leaves no room for more, and the window grows while its head is tried.
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
    given_texts = [given_text(request, tokenizer) for request in driver.listener.asked]
    assert given_texts[0] == ""
    assert given_texts[-1].startswith(" one two")
    for request, before in zip(driver.listener.asked, given_texts, strict=True):
        assert request.prompt[0] == SOT
        assert request.sampling.begin_suppress_tokens == (() if before else (EOT,))
        assert request.priority < 0
        assert request.sampling.num_beams == 1
        assert request.sampling.timestamps is None


def test_there_is_one_request_at_a_time_however_slow_the_engine_is(tokenizer: Tokenizer) -> None:
    words = speech("one two three four five six seven eight nine")
    driver = Driver(tokenizer, words, delay=20)
    driver.play(10)
    driver.drain()
    assert driver.texts() == ["one two three four five six seven eight nine"]
    assert len(driver.listener.asked) <= 5


def test_a_slow_engine_makes_the_stream_wait(tokenizer: Tokenizer) -> None:
    words = speech(*["word"] * 200)
    driver = Driver(tokenizer, words, delay=10**9)
    driver.play(32)
    assert driver.session.has_room
    driver.play(5)
    assert not driver.session.has_room


@pytest.mark.parametrize("bad", ["silent", "repeating", "unsure", "endless"])
def test_a_look_that_is_not_good_tells_nothing(bad: str, tokenizer: Tokenizer) -> None:
    def answer(request: EngineRequest) -> Output:
        text = " so" * 40 if bad == "repeating" else " thanks for watching"
        said = says(
            tokenizer,
            text,
            score=-0.1 if bad in ("repeating", "endless") else -2.0,
            silence=0.9 if bad == "silent" else 0.0,
        )
        if bad == "endless":
            said = Output(
                request_id="", tokens=said.tokens[:-1], scores=said.scores, finish_reason="length"
            )
        return to(request, said)

    driver = Driver(tokenizer, speech("one two three four five six"), answer)
    driver.play(2.4)
    assert not driver.of(Delta, Interim)
    if bad == "silent":
        driver.play(2)
        assert driver.texts() == [""]


def test_the_end_is_tried_at_further_temperatures(tokenizer: Tokenizer) -> None:
    asked: list[float] = []

    def answer(request: EngineRequest) -> Output:
        asked.append(request.sampling.temperature or 0.0)
        score = -0.1 if request.sampling.temperature else -3.0
        return to(request, says(tokenizer, " good", score=score))

    driver = Driver(tokenizer, speech("one two"), answer)
    driver.play(3)
    assert driver.texts() == ["good"]
    assert asked[-2:] == [0.0, 0.2]
    assert set(asked[:-1]) == {0.0}


def test_beams_count_at_the_end(tokenizer: Tokenizer) -> None:
    options = LiveOptions(language="en", rules=QualityRules(beam_size=5))
    driver = Driver(tokenizer, speech("one two three"), options=options)
    driver.play(4)
    assert driver.texts() == ["one two three"]
    assert [request.sampling.num_beams for request in driver.listener.asked][-1] == 5
    assert {request.sampling.num_beams for request in driver.listener.asked[:-1]} == {1}


def test_the_language_is_detected_once(tokenizer: Tokenizer) -> None:
    words = speech("ja nein doch vielleicht", 0.9, "gut")
    listener = Listener(tokenizer, words)

    def answer(request: EngineRequest) -> Output:
        if request.sampling.max_tokens == 1:
            start, end = window_of(request)
            assert end - start >= RATE
            return Output(
                request_id=request.id, tokens=[token_id("<|de|>")], finish_reason="length"
            )
        assert token_id("<|de|>") in request.prompt
        return listener(request)

    driver = Driver(tokenizer, words, answer, LiveOptions())
    driver.play(2)
    driver.session.configure(LiveOptions(interval_ms=300))  # other settings leave it alone
    assert driver.session.language == "de"
    driver.play(3)
    assert driver.texts() == ["ja nein doch vielleicht", "gut"]
    driver.session.configure(LiveOptions(language="en"))
    assert driver.session.language == "en"


def test_a_turn_that_is_committed_by_hand_has_all_its_stretches(tokenizer: Tokenizer) -> None:
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
    for _ in range(3):  # nothing is kept of what brings nothing
        driver.session.feed(np.empty(0, np.float32))
        with pytest.raises(RequestError, match="0 ms of audio"):
            driver.session.commit()
    driver.play(1)
    driver.session.commit()
    driver.drain()
    assert len(driver.texts()) == 2


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
        if window_of(request)[0] < RATE:
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


def test_what_the_model_does_not_know_is_refused(tokenizer: Tokenizer) -> None:
    driver = Driver(tokenizer, [])
    with pytest.raises(RequestError, match="does not know french"):
        driver.session.configure(LiveOptions(language="fr"))


def test_the_prompt_is_in_front_and_earlier_text_if_it_is_asked_for(tokenizer: Tokenizer) -> None:
    rules = QualityRules(beam_size=1, condition_on_previous_text=True)
    options = LiveOptions(language="en", prompt="Kowalska", rules=rules)
    words = speech("one two", 0.9, "three")
    driver = Driver(tokenizer, words, options=options)
    driver.play(4)
    assert driver.texts() == ["one two", "three"]
    last = driver.listener.asked[-1].prompt
    assert tokenizer.decode(last[: last.index(SOT)]) == " Kowalska one two"


# Whatever the engine says.


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Word], float]:
    """Words with pauses of any length between them, and how long it takes."""
    parts: list[str | float] = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 14))
        parts.append(
            " ".join(draw(st.sampled_from(["ja", "so", "ok", "no"])) for _ in range(count))
        )
        parts.append(draw(st.sampled_from([0.16, 0.3, 0.6, 1.0])))
    words = speech(*parts, length=draw(st.sampled_from([0.2, 0.35, 0.6])))
    return words, words[-1].end / RATE + 2.0


@settings(max_examples=60)
@given(streams(), st.randoms(use_true_random=False), st.integers(0, 12))
def test_what_is_final_is_never_taken_back(
    tokenizer: Tokenizer,
    stream: tuple[list[Word], float],
    random: "np.random.RandomState",
    slow: int,
) -> None:
    """Whatever it mishears, however slow it is: a turn's text is its deltas, joined, and it ends."""
    words, seconds = stream
    driver = Driver(tokenizer, words, delay=slow)
    driver.listener.mishears = lambda word: word if random.random() < 0.7 else "hm,"
    driver.play(seconds)
    driver.drain()
    driver.texts()
    assert len(driver.of(Completed)) == len(driver.of(Committed)) == len(driver.of(SpeechStarted))
    assert driver.session.idle
    assert driver.most_held < WINDOW + 15 * RATE


@settings(max_examples=60)
@given(streams(), st.integers(0, 4))
def test_every_word_is_there_once(
    tokenizer: Tokenizer, stream: tuple[list[Word], float], slow: int
) -> None:
    """With an engine that hears well: whatever the pauses, turns together have all words in order."""
    words, seconds = stream
    words = [Word(f"{word.text}{n}", word.start, word.end) for n, word in enumerate(words)]
    driver = Driver(tokenizer, words, delay=slow)
    driver.play(seconds)
    driver.drain()
    assert " ".join(driver.texts()).split() == [word.text for word in words]


def test_memory_does_not_grow_with_hours(tokenizer: Tokenizer) -> None:
    """An hour of talk: what is kept is a window and what the engine has not answered yet."""
    sentence: list[str | float] = [
        "one two three four five six seven eight nine ten",
        0.3,
        "yes",
        1.0,
    ]
    words = speech(*sentence * 5)
    period = words[-1].end + RATE
    again = list(
        itertools.chain.from_iterable(
            [Word(w.text, w.start + n * period, w.end + n * period) for w in words]
            for n in range(20)
        )
    )
    driver = Driver(tokenizer, again)
    driver.play(20 * period / RATE)
    assert len(driver.texts()) == 100
    assert driver.most_held < WINDOW + RATE


def test_an_interrupt_costs_its_turn_alone(tokenizer: Tokenizer) -> None:
    words = speech("one two three", 0.9, "four five")
    listener = Listener(tokenizer, words)

    class Engine:
        interrupted = False

        def run(self, requests: Sequence[EngineRequest]) -> Iterator[Output]:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            yield from map(listener, requests)

    session = Driver(tokenizer, words).session
    live = LiveTranscription(cast(LocalEngine, Engine()), session)
    events: list[LiveEvent] = []
    interrupts = 0
    for block in range(50):
        samples = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.float32)
        try:
            events += live.feed(samples)
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert [event.turn for event in events if isinstance(event, Failed)] == [0]
    assert [e.text for e in events if isinstance(e, Completed)] == ["four five"]
