"""A model in several processes: one that dies takes the others along, and streams continue."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from galley import SamplingParams
from galley.engine.loaders import load_engine
from galley.gateway.registry import Registry
from galley.service.client import EngineClient
from galley.service.requests import expand
from galley.service.streams import OutputStream
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest
from galley.types.model_info import ModelInfo
from tests.conftest import CheckpointMaker

COUNT = 400


def settings(folder: Path, **more: Any) -> EngineSettings:
    return EngineSettings(model=str(folder), threads=1, kv_cache_tokens=4096, **more)


def requests(info: ModelInfo) -> list[EngineRequest]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=COUNT, ignore_eos=True)
    return [expand([5, 6, i], params, info, request_id=f"r{i}")[0] for i in range(4)]


def texts_of_one_process(folder: Path) -> list[list[int]]:
    engine = load_engine(settings(folder), folder)
    made = requests(engine.info)
    texts: dict[str, list[int]] = {one.id: [] for one in made}
    for one in made:
        engine.add(one)
    while engine.has_work:
        for output in engine.step():
            texts[output.request_id] += output.tokens
    return list(texts.values())


async def tokens(stream: OutputStream) -> list[int]:
    return [token async for output in stream for token in output.tokens]


def rank_of(engine: int) -> int:
    """Return the process of the other rank."""
    [rank] = psutil.Process(engine).children()
    assert "galley.service.rank" in rank.cmdline()
    return int(rank.pid)


def test_killing_any_rank_loses_no_stream_and_leaves_no_process(
    checkpoint: CheckpointMaker,
) -> None:
    async def run() -> list[list[int]]:
        folder = checkpoint("llama")
        client = await EngineClient.start(
            settings(folder, tensor_parallel=2), str(folder), max_queue=4
        )
        seen: set[int] = set()
        try:
            streams = [client.submit(one) for one in requests(client.info)]
            first = (await anext(streams[0])).tokens
            for of_engine in (False, True):
                [engine] = client.engine_pids
                rank = rank_of(engine)
                seen |= {engine, rank}
                if of_engine:
                    os.kill(rank, signal.SIGSTOP)  # it cannot see that its engine is gone
                os.kill(engine if of_engine else rank, signal.SIGKILL)
                while client.state == "ready":
                    await asyncio.sleep(0.01)
                await client.ready()
            seen |= {*client.engine_pids, rank_of(client.engine_pids[0])}
            texts = await asyncio.gather(*map(tokens, streams))
            assert client.restarts == 2
            texts[0] = [*first, *texts[0]]
        finally:
            await client.close()
        until = time.monotonic() + 10
        while any(map(psutil.pid_exists, seen)) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert not any(map(psutil.pid_exists, seen))
        return list(texts)

    assert asyncio.run(run()) == texts_of_one_process(checkpoint("llama"))


def test_the_memory_of_all_ranks_is_the_engines(checkpoint: CheckpointMaker) -> None:
    async def run() -> None:
        given = Settings(
            model=str(checkpoint("llama")), threads=1, kv_cache_tokens=1024, tensor_parallel=2
        )
        models = Registry(given)
        await models.start()
        try:
            [served] = models
            engine, rank = served.processes["engine"]
            assert rank == rank_of(engine)
        finally:
            await models.close()

    asyncio.run(run())
