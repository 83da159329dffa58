"""Whatever the engine returns: final text stays, no word is lost or doubled, memory does not grow."""

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.llm.local import LocalEngine
from galley.speech.live_events import (
    Committed,
    Completed,
    Failed,
    LiveEvent,
    SpeechStarted,
)
from galley.speech.transcribe import LiveTranscription
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.speech.answers import RATE
from tests.speech.live_driver import (
    BLOCK,
    INPUT_SAMPLES,
    Driver,
    Listener,
    Word,
    speech,
)
from tests.thorough import examples


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Word], float]:
    """Return words with pauses of any length between them, and the total duration."""
    parts: list[str | float] = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 14))
        parts.append(
            " ".join(draw(st.sampled_from(["ja", "so", "ok", "no"])) for _ in range(count))
        )
        parts.append(draw(st.sampled_from([0.16, 0.3, 0.6, 1.0])))
    words = speech(*parts, length=draw(st.sampled_from([0.2, 0.35, 0.6])))
    return words, words[-1].end / RATE + 2.0


@settings(max_examples=examples(60))
@given(streams(), st.randoms(use_true_random=False), st.integers(0, 12))
def test_what_is_final_is_never_taken_back(
    tokenizer: Tokenizer,
    stream: tuple[list[Word], float],
    random: "np.random.RandomState",
    slow: int,
) -> None:
    """However wrong or slow the engine is, a turn's text is its joined deltas, and the turn ends."""
    words, seconds = stream
    driver = Driver(tokenizer, words, delay=slow)
    driver.listener.mishears = lambda word: word if random.random() < 0.7 else "hm,"
    driver.play(seconds)
    driver.drain()
    driver.texts()
    assert len(driver.of(Completed)) == len(driver.of(Committed)) == len(driver.of(SpeechStarted))
    assert driver.session.idle
    assert driver.most_held < INPUT_SAMPLES + 15 * RATE


@settings(max_examples=examples(60))
@given(streams(), st.integers(0, 4))
def test_every_word_is_there_once(
    tokenizer: Tokenizer, stream: tuple[list[Word], float], slow: int
) -> None:
    """With an accurate engine and any pauses, the turns together have all words in order."""
    words, seconds = stream
    words = [Word(f"{word.text}{n}", word.start, word.end) for n, word in enumerate(words)]
    driver = Driver(tokenizer, words, delay=slow)
    driver.play(seconds)
    driver.drain()
    assert " ".join(driver.texts()).split() == [word.text for word in words]


def test_memory_does_not_grow_with_hours(tokenizer: Tokenizer) -> None:
    """An hour of talk: memory holds one encoder input and what the engine has not answered yet."""
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
    assert driver.most_held < INPUT_SAMPLES + RATE


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
