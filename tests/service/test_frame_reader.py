"""Bytes from a socket, received into one buffer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from galley.service.frame_reader import FrameReader


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FrameReader, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):  # an error in a callback would leave it waiting
        transport, reader = await loop.create_connection(FrameReader, sock=ours)
    yield reader, theirs
    transport.close()
    theirs.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop; Ray Serve's are those of uvloop."""
    if request.param == "asyncio":
        return asyncio.new_event_loop
    found: Any = pytest.importorskip("uvloop", reason="extra ray")
    return found.new_event_loop  # type: ignore[no-any-return]


def test_everything_arrives_and_then_the_end(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        async with connected() as (reader, theirs):
            waiting = asyncio.create_task(reader.more())
            await asyncio.sleep(0)
            assert not waiting.done()
            theirs.send(b"one")
            assert await waiting
            theirs.send(b"two")
            theirs.shutdown(socket.SHUT_WR)
            assert await reader.more()
            assert reader.received == b"onetwo"
            assert not await reader.more()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_a_sender_waits_for_a_slow_reader() -> None:
    sent = bytes(range(256)) * (1 << 15)  # 8 MiB

    async def run() -> None:
        async with connected() as (reader, theirs):
            loop = asyncio.get_running_loop()
            sending = asyncio.create_task(loop.sock_sendall(theirs, sent))
            seen = -1
            while len(reader.received) > seen:  # until nothing more comes
                seen = len(reader.received)
                for _ in range(10):
                    await asyncio.sleep(0)
            assert 0 < seen < len(sent) // 4
            assert not sending.done()
            while len(reader.received) < len(sent):
                assert await reader.more()
            await sending
            assert reader.received == sent

    asyncio.run(run())
