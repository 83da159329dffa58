"""Transcribing through the engine process keeps no more memory for a longer recording."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

from galley.speech.async_transcribe import transcribe_async
from galley.speech.options import TranscribeOptions
from galley.speech.session import Session
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.speech import tiny
from tests.speech.answers import model_info, says, to
from tests.speech.session_driver import chunk

CHUNKS = 25
IN_FLIGHT = 4


class Chunks:
    """As many chunks as a long recording has."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    def fill(self, session: Session) -> None:
        while session.has_room and self.given < CHUNKS:
            start = 10 * self.given
            session.add(chunk(start, start + 4), np.full((4, tiny.MELS), start, np.float32))
            self.given += 1
        if self.given == CHUNKS:
            session.end()

    def close(self) -> None:
        self.closed = True


class Stream:
    """A request and its answer; ``living`` contains it as long as it is referenced."""

    def __init__(self, request: EngineRequest, output: Output) -> None:
        self._request = request
        self._outputs = [output]

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        await asyncio.sleep(0)
        if not self._outputs:
            raise StopAsyncIteration
        return self._outputs.pop()

    def cancel(self, *, whole: bool = False) -> None:
        pass


class Submitter:
    """An engine that answers at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.living: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.most = 0

    def submit_all(self, requests: Sequence[EngineRequest]) -> list[Any]:
        said = says(self._tokenizer, 0.0, " x", 1.0)
        streams = [Stream(request, to(request, said)) for request in requests]
        self.living.update(streams)
        gc.collect()
        self.most = max(self.most, len(self.living))
        return streams

    async def submit_when_room(self, requests: Sequence[EngineRequest]) -> list[Any]:
        return self.submit_all(requests)


def test_what_is_done_is_released(tokenizer: Tokenizer) -> None:
    session = Session(
        SpeechTokens(model_info(), tokenizer),
        TranscribeOptions(language="en"),
        "r",
        max_chunks=IN_FLIGHT,
    )
    engine, chunks = Submitter(tokenizer), Chunks()

    async def run() -> int:
        return len([s async for s in transcribe_async(engine, session, chunks)])  # type: ignore[arg-type]

    gc.freeze()  # otherwise each collection also scans everything that other tests imported
    try:
        assert asyncio.run(run()) == CHUNKS
    finally:
        gc.unfreeze()
    assert chunks.closed
    assert engine.most <= IN_FLIGHT + 2
