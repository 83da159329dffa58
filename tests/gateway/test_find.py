"""Requests are refused before the first await, so a busy event loop does not delay refusals."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from galley.errors import QueueFull, RequestError, UnknownModel
from galley.gateway.call import Call
from galley.gateway.caller import Caller
from galley.gateway.generation import Generation
from galley.gateway.registry import Registry, open_models
from galley.gateway.served import ServedModel
from galley.settings.config import Settings
from galley.types import SamplingParams, Task
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = make_checkpoint(tmp_path_factory.mktemp("models"))
    return Settings(
        model=str(folder),
        served_model_name="tiny",
        max_running=1,
        max_queue=2,
        threads=1,
        kv_cache_tokens=4096,
    )


async def generation(served: ServedModel, name: str, tokens: int) -> Generation:
    call = Call(served, "/v1/completions", Caller(name))
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return await Generation.submit(
        call, params, [[5, 6]], priority=0, cache_salt=None, prompt_param="prompt"
    )


@asynccontextmanager
async def busy(settings: Settings) -> AsyncIterator[tuple[Registry, ServedModel]]:
    """Yield a model with a known pace and a long text in progress."""
    async with open_models(settings) as models:
        served = await models.find("tiny", "generate", Caller("first"))
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            short = await generation(served, f"short {time.monotonic()}", 400)
            async for _ in short.pieces():
                pass
            short.close()
        long = await generation(served, "long", 500)
        yield models, served
        long.close()


async def refusals(settings: Settings) -> None:
    async with busy(settings) as (models, served):

        def find(name: str, task: Task, caller: Caller | None = None) -> object:
            return models.find(name, task, caller)

        with pytest.raises(UnknownModel):
            find("nobody", "generate")
        with pytest.raises(RequestError, match="'tiny' cannot embed"):
            find("tiny", "embed")
        waiting = [await generation(served, "waiting", 500)]
        with pytest.raises(QueueFull, match="after the request's deadline"):
            find("tiny", "generate", Caller("hasty", deadline=time.monotonic() + 1e-3))
        waiting.append(await generation(served, "last", 500))
        with pytest.raises(QueueFull, match="3 sequences are running or waiting"):
            find("tiny", "generate", Caller("late"))
        with pytest.raises(QueueFull, match="3 sequences are running or waiting"):
            models.expect("generate", Caller("late"))
        for one in waiting:
            one.close()


def test_what_is_refused_is_refused_without_a_turn_of_the_loop(settings: Settings) -> None:
    asyncio.run(refusals(settings))
