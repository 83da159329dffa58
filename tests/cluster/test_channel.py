"""Connections between machines: who may connect, and frames that others have touched."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from galley import __version__
from galley.cluster.channel import Channel, greet, receive
from galley.errors import SettingsError
from galley.links import handshake
from galley.links.handshake import BadFrame
from galley.service.frames import MAX_FRAME_BYTES

TOKEN = b"a secret of both machines"

Bend = Callable[[bytes], bytes]


async def connected(
    use: Callable[[Channel, Channel], Awaitable[None]],
    *,
    tokens: tuple[bytes, bytes] = (TOKEN, TOKEN),
    bend: Bend = lambda data: data,
) -> None:
    """Connect two channels through a relay that may change what the caller sends after the handshake."""
    ready: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ready.set_result(await receive(reader, writer, tokens[1]))
        except Exception as error:
            ready.set_exception(error)
        await ended.wait()
        writer.transport.abort()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, to: Bend
        ) -> None:
            while data := await source.read(1 << 16):
                sink.write(to(data))
            sink.close()

        after = lambda data: bend(data) if ready.done() else data  # noqa: E731
        await asyncio.gather(pass_on(reader, back, after), pass_on(there, writer, lambda d: d))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    between = await asyncio.start_server(relay, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*between.sockets[0].getsockname()[:2])
    try:
        caller = await greet(reader, writer, tokens[0])
        await use(caller, await ready)
    finally:
        ended.set()
        writer.transport.abort()
        for one in (server, between):
            one.close()
        if ready.done():
            ready.exception()


async def received(side: Channel, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async for more in side.frames():
        bodies += more
        if len(bodies) >= count:
            break
    return bodies


def test_frames_arrive_in_both_directions_whole_and_in_order() -> None:
    sent = [b"", b"x", b"y" * 300_000]

    async def use(caller: Channel, replica: Channel) -> None:
        for body in sent:
            caller.send(body)
            replica.send(body[::-1])
        assert await received(replica, 3) == sent
        assert await received(caller, 3) == [body[::-1] for body in sent]

    asyncio.run(connected(use))


def test_another_token_is_refused_with_the_reason() -> None:
    async def never(_: Channel, __: Channel) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(SettingsError, match="the token of cluster_token_file is another one"):
        asyncio.run(connected(never, tokens=(b"guessed by someone", TOKEN)))


def test_another_version_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Channel, __: Channel) -> None:
        raise AssertionError("it was let in")

    written = handshake._written
    first = [True]

    def of_another_version(frame: Any) -> bytes:
        # The side that connects speaks first.
        if first:
            frame = msgspec.structs.replace(frame, version=f"{__version__}.{first.pop()}")
        return written(frame)

    monkeypatch.setattr(handshake, "_written", of_another_version)
    with pytest.raises(SettingsError, match=r"it runs Galley .*, the caller .*\.True"):
        asyncio.run(connected(never))


def flipped(data: bytes) -> bytes:
    return data[:6] + bytes([data[6] ^ 1]) + data[7:]


@pytest.mark.parametrize("bend", [flipped, lambda data: data + data], ids=["changed", "repeated"])
def test_a_frame_that_was_touched_ends_the_connection(bend: Bend) -> None:
    async def use(caller: Channel, replica: Channel) -> None:
        caller.send(b"submit this")
        with pytest.raises(BadFrame, match="changed on its way"):
            await received(replica, 2)

    asyncio.run(connected(use, bend=bend))


def test_a_frame_beyond_the_limit_is_not_read() -> None:
    async def use(caller: Channel, replica: Channel) -> None:
        caller._writer.write(struct.pack("<I", MAX_FRAME_BYTES + 1))
        with pytest.raises(BadFrame, match="exceeds"):
            await received(replica, 1)

    asyncio.run(connected(use))


SHORT = msgspec.msgpack.encode({"nonce": b"short", "version": __version__})


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack("<I", len(SHORT)) + SHORT]
)
def test_what_is_no_galley_is_refused(answer: bytes) -> None:
    async def run() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await reader.read()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        with pytest.raises(BadFrame, match="not Galley"):
            await greet(reader, writer, TOKEN)
        writer.transport.abort()
        server.close()

    asyncio.run(run())
