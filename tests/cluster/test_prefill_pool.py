"""Requests whose prompts are computed elsewhere are answered whatever happens there."""

import asyncio
import warnings
from collections.abc import Sequence, Set

import pytest

from galley.cluster.router import PrefixRouter
from galley.errors import Conflict
from galley.service.client import EngineClient
from galley.service.links import ReplicaSource
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.transfers import KVPeer
from tests.cluster.toy_link import JumpingLoop, ToyEngine, token_at


class BrokenPool:
    """Fails after a second."""

    def launch(self) -> None:
        pass

    def wants(self, request: EngineRequest, held: Sequence[Set[bytes]]) -> bool:
        return True

    async def compute(self, request: EngineRequest, deadline: float) -> KVPeer | None:
        await asyncio.sleep(1)
        raise RuntimeError("this is a mistake in the program")

    async def close(self) -> None:
        pass


def asked(name: str) -> EngineRequest:
    payload = Generate(prompt=[1, 2], sampling=SamplingParams(seed=1, max_tokens=1))
    return EngineRequest(id=name, payload=payload)


async def _case() -> None:
    engine = ToyEngine("a", 4)

    async def connect() -> ToyEngine:
        return engine

    client = EngineClient(
        EngineSettings(max_running=4),
        "/m",
        max_queue=10,
        replicas=0,
        remotes=[ReplicaSource(name="a", connect=connect, seats=4, remote=True)],
        router=PrefixRouter(),
        prefill=BrokenPool(),
    )
    client.launch()
    await client.ready()
    stream = client.submit(asked("r"))
    with pytest.raises(Conflict):
        client.submit(asked("r"))
    client.submit(asked("cancelled")).cancel()
    await asyncio.sleep(2)
    engine.step()
    output = await anext(stream)
    assert output.result is not None
    assert output.tokens == [token_at(asked("r"), 0, "a")]
    await client.close()


def test_a_request_is_answered_if_computing_its_prompt_elsewhere_fails() -> None:
    loop = JumpingLoop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited
        loop.run_until_complete(asyncio.wait_for(_case(), 60))
    loop.close()
