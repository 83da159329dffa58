"""A live stream whose engine is slow, full, or gone."""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from galley.errors import EngineFailed, QueueFull, Unavailable
from galley.service.client import EngineClient
from galley.speech.live import LiveSession
from galley.speech.live_events import Completed, LiveEvent
from galley.speech.live_stream import LiveStream
from galley.speech.options import LiveOptions
from galley.speech.segmenter import VAD_FRAME
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.speech.answers import model_info, says, to
from tests.speech.live_driver import ENGLISH, Places

SECOND = bytes(2 * 16_000)


class Blank(Places):
    """Empty features."""

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.zeros((4, 16), np.float32)


class Talk:
    """A detector that always reports speech."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full(len(samples) // VAD_FRAME, 0.9, np.float32)

    def finish(self) -> NDArray[np.float32]:
        return np.empty(0, np.float32)


class Engine:
    """An engine that answers with one word, after refusing several requests; or never."""

    def __init__(self, tokenizer: Tokenizer, *, full: int = 0, answers: bool = True) -> None:
        self._tokenizer = tokenizer
        self._full = full
        self._answers = answers
        self.requests = self.cancelled = 0

    submit_when_room = EngineClient.submit_when_room

    def submit_all(
        self, requests: Sequence[EngineRequest], deadline: float = math.inf
    ) -> list["Answer"]:
        if self._full:
            self._full -= 1
            raise QueueFull("full", retry_after=0.001)
        self.requests += len(requests)
        word = says(self._tokenizer, " one")
        return [Answer(self, to(r, word) if self._answers else None) for r in requests]


class Answer:
    """The engine's answer to one request; None for no answer, ever."""

    def __init__(self, engine: Engine, output: Output | None) -> None:
        self._engine = engine
        self._output = output

    def cancel(self, *, whole: bool = False) -> None:
        self._engine.cancelled += 1

    async def __aiter__(self) -> AsyncIterator[Output]:
        if self._output is None:
            await asyncio.Event().wait()
        else:
            yield self._output


def stream_of(engine: Any, tokenizer: Tokenizer) -> tuple[LiveStream, list[LiveEvent]]:
    received: list[LiveEvent] = []

    async def on_events(events: Sequence[LiveEvent]) -> None:
        received.extend(events)

    session = LiveSession(SpeechTokens(model_info(), tokenizer), Blank(), Talk(), ENGLISH, "s")
    stream = LiveStream(engine, session, on_events=on_events, timeout=0.05)
    return stream, received


def run(stream: LiveStream, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` while the stream keeps its engine busy."""

    async def both() -> None:
        await stream.configure("s16le", 16_000, LiveOptions(language="en"))
        running = asyncio.create_task(stream.run())
        working = asyncio.create_task(work)
        done, waiting = await asyncio.wait({running, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            task.result()

    asyncio.run(both())


def test_an_engine_that_does_not_come_along_ends_the_stream(tokenizer: Tokenizer) -> None:
    engine = Engine(tokenizer, answers=False)
    stream, _ = stream_of(engine, tokenizer)

    async def talk() -> None:
        for _ in range(60):
            await stream.append(SECOND)

    with pytest.raises(Unavailable, match="behind"):
        run(stream, talk())
    assert 30 < stream.seconds < 40
    assert (engine.requests, engine.cancelled) == (1, 1)


def test_a_full_queue_is_retried(tokenizer: Tokenizer) -> None:
    engine = Engine(tokenizer, full=3)
    stream, received = stream_of(engine, tokenizer)

    async def talk() -> None:
        await stream.append(SECOND)
        await stream.commit()
        await stream.settled()

    run(stream, talk())
    assert [event.text for event in received if isinstance(event, Completed)] == ["one"]


def test_an_engine_that_is_gone_for_good_ends_the_stream(tokenizer: Tokenizer) -> None:
    class Gone:
        submit_when_room = EngineClient.submit_when_room

        def submit_all(
            self, requests: Sequence[EngineRequest], deadline: float = math.inf
        ) -> list[Answer]:
            raise EngineFailed("the engine is down")

    stream, _ = stream_of(Gone(), tokenizer)

    async def talk() -> None:
        await stream.append(SECOND)
        await asyncio.Event().wait()

    with pytest.raises(EngineFailed):
        run(stream, talk())
