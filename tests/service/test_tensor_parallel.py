"""A model in several processes: one that dies takes the others along, and streams continue."""

import asyncio
import os
import signal
import time
from typing import Any

import psutil
import pytest

from galley.gateway.registry import Registry
from galley.service.client import EngineClient
from galley.settings.config import Settings
from tests.conftest import CheckpointMaker
from tests.service import rank_texts
from tests.thorough import long

EXECUTORS: list[Any] = [("cpu", 400), pytest.param("gpu", 12, marks=long)]
"""An executor, and tokens of a text: the kernels of a GPU are interpreted."""


def rank_of(engine: int) -> int:
    """Return the process of the other rank."""
    [rank] = psutil.Process(engine).children()
    assert "galley.service.rank" in rank.cmdline()
    return int(rank.pid)


@pytest.mark.parametrize(("executor", "tokens"), EXECUTORS)
def test_killing_any_rank_loses_no_stream_and_leaves_no_process(
    executor: str, tokens: int, checkpoint: CheckpointMaker
) -> None:
    if executor == "gpu":
        pytest.importorskip("triton", reason="triton is not installed")
    chosen: dict[str, Any] = {"executor": executor, "speculation": "off"}

    async def run() -> list[list[int]]:
        folder = checkpoint("llama")
        client = await EngineClient.start(
            rank_texts.settings(folder, tensor_parallel=2, **chosen), str(folder), max_queue=4
        )
        seen: set[int] = set()
        try:
            streams = [client.submit(one) for one in rank_texts.requests(client.info, 4, tokens)]
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
            texts = await asyncio.gather(*map(rank_texts.tokens_of, streams))
            assert client.restarts == 2
            texts[0] = [*first, *texts[0]]
        finally:
            await client.close()
        until = time.monotonic() + 10
        while any(map(psutil.pid_exists, seen)) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert not any(map(psutil.pid_exists, seen))
        return list(texts)

    expected = rank_texts.texts_of_one_process(checkpoint("llama"), 4, tokens, **chosen)
    assert asyncio.run(run()) == expected


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
