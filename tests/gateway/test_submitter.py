"""Replacements for an engine behind the gateway: here a cache of whole answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from galley.gateway.call import Call
from galley.gateway.caller import Caller
from galley.gateway.generation import Generation
from galley.gateway.make_submitter import make_submitter
from galley.gateway.registry import Registry
from galley.gateway.submitter import Submitter
from galley.service.streams import Outputs
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output, SamplingParams
from tests.checkpoints import make_checkpoint


class Remembered:
    """The outputs of one request: recorded as the engine sends them, or replayed."""

    def __init__(self, source: Outputs | list[Output], noted: list[Output], name: str) -> None:
        self._source, self._noted, self._name, self._next = source, noted, name, 0

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if not isinstance(self._source, list):
            output = await self._source.__anext__()
            self._noted.append(output)
            return output
        if self._next == len(self._source):
            raise StopAsyncIteration
        self._next += 1
        return msgspec.structs.replace(self._source[self._next - 1], request_id=self._name)

    def cancel(self, *, whole: bool = False) -> None:
        if not isinstance(self._source, list):
            self._source.cancel(whole=whole)


class AnswerCache:
    """Submits to an engine what was not requested before."""

    def __init__(self, engine: Submitter) -> None:
        self._engine = engine
        self._answers: dict[bytes, list[Output]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit_all(self, requests: Sequence[EngineRequest], deadline: float) -> Sequence[Outputs]:
        return [self._submit(request, deadline) for request in requests]

    def _submit(self, request: EngineRequest, deadline: float) -> Remembered:
        key = msgspec.msgpack.encode(msgspec.structs.replace(request, id=""))
        if key in self._answers:
            return Remembered(self._answers[key], [], request.id)
        noted = self._answers[key] = []
        [outputs] = self._engine.submit_all([request], deadline)
        return Remembered(outputs, noted, request.id)


def cached(settings: EngineSettings, folder: str, *, max_queue: int, **hooks: Any) -> Submitter:
    stand_in: Any = AnswerCache(make_submitter(settings, folder, max_queue=max_queue, **hooks))
    result: Submitter = stand_in
    return result


async def answers(settings: Settings) -> list[tuple[str, int]]:
    """Return the text of each request, and the engine's step count by then."""
    models = Registry(settings, make=cached)
    await models.start()
    try:
        served = await models.find("tiny", "generate", Caller("finds"))
        found = []
        for i, prompt in enumerate(([5, 6], [5, 6], [7, 6], [5, 6])):
            call = Call(served, "/v1/completions", Caller(f"r{i}"))
            params = SamplingParams(max_tokens=8, ignore_eos=True, seed=1)
            generation = await Generation.submit(
                call, params, [prompt], priority=0, cache_salt=None, prompt_param="prompt"
            )
            text = "".join([piece.delta.text async for piece in generation.pieces()])
            generation.close()
            found.append((text, served.stats.steps))
        return found
    finally:
        await models.close()


def test_a_cache_stands_in_for_an_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("models"))
    settings = Settings(
        model=str(folder), served_model_name="tiny", threads=1, kv_cache_tokens=1024
    )
    first, again, other, last = asyncio.run(answers(settings))
    assert again == first
    assert other[0] != first[0]
    assert other[1] > first[1]
    assert last == (first[0], other[1])
