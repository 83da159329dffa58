"""Requests whose prompts are computed elsewhere before an engine gets them, and how they end meanwhile."""

import asyncio
import math
from typing import Any

import pytest

from galley.errors import Conflict
from galley.service.admission import Admission
from galley.service.engine_requests import EngineRequests
from galley.service.frames import Abort, Submit
from galley.service.request_book import Prefill, RequestBook
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.transfers import KVPeer

PEER = KVPeer("10.0.0.7", 8600, 64)


def request(name: str) -> EngineRequest:
    return EngineRequest(
        id=name, payload=Generate(prompt=[1] * 64, sampling=SamplingParams(max_tokens=4))
    )


class Engine:
    """What a book has of a replica, and what was sent to it."""

    name = "one"

    def __init__(self) -> None:
        self.sent: list[Submit | Abort] = []
        self.book = RequestBook(
            Admission(4, 8),
            choose=lambda request, version: (self, 0),  # type: ignore[arg-type, return-value]
            spare=lambda: self,  # type: ignore[arg-type, return-value]
        )
        self.requests = EngineRequests(self._send, self.book.resumption)
        self.requests.engine_ready()

    def _send(self, frame: Submit | Abort) -> int:
        self.sent.append(frame)
        return len(self.sent)

    @property
    def received(self) -> list[EngineRequest]:
        return [frame.request for frame in self.sent if isinstance(frame, Submit)]


async def found() -> KVPeer | None:
    return PEER


async def nothing() -> KVPeer | None:
    return None


async def broken() -> KVPeer | None:
    raise RuntimeError("a fault of the prefill pool")


@pytest.mark.parametrize(("compute", "peer"), [(found, PEER), (nothing, None), (broken, None)])
def test_a_request_reaches_its_engine_whatever_became_of_its_prompt(
    compute: Prefill, peer: KVPeer | None
) -> None:
    async def run() -> None:
        engine = Engine()
        engine.book.take([request("a")], math.inf, {"a": compute})
        assert engine.received == []
        async with asyncio.timeout(5):
            while not engine.received:
                await asyncio.sleep(0)
        [sent] = engine.received
        assert sent.kv_from == peer
        [unfinished] = engine.book
        assert unfinished.claim.cached == (0 if peer is None else peer.tokens)

    asyncio.run(run())


@pytest.mark.parametrize("rounds", range(3))
def test_a_request_that_ends_meanwhile_is_never_sent(rounds: int) -> None:
    async def run() -> None:
        engine, ended = Engine(), 0

        async def slow() -> KVPeer | None:
            nonlocal ended
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                return PEER
            finally:
                ended += 1

        [stream] = engine.book.take([request("a")], math.inf, {"a": slow})
        [task] = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(rounds):
            await asyncio.sleep(0)
        assert not engine.received
        stream.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended == (rounds > 0)
        assert not engine.sent
        assert not len(engine.book)

    asyncio.run(run())


def test_a_refused_request_begins_no_prefill() -> None:
    async def run() -> None:
        engine, began = Engine(), 0

        def compute() -> Any:
            nonlocal began
            began += 1
            return found()

        with pytest.raises(Conflict):
            engine.book.take([request("a")] * 2, math.inf, {"a": compute})
        await asyncio.sleep(0)
        assert began == 0
        assert not len(engine.book)

    asyncio.run(run())
