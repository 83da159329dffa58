"""The listening socket of a replica: connections that have yet to prove that they have the token."""

import asyncio
import socket
from contextlib import suppress

import pytest

from galley.cluster.channel import Channel
from galley.cluster.listener import MOST_HANDSHAKES, Listener
from galley.cluster.remote import remote_source
from galley.links.access import Access


def test_further_strangers_replace_the_oldest_before_and_after_tls(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("listener", "channel"):  # so that no handshake ends because its time is over
        monkeypatch.setattr(f"galley.cluster.{module}.HANDSHAKE_SECONDS", 600.0)

    async def run() -> None:
        served = asyncio.Event()

        async def serve(channel: Channel, peer: str) -> None:
            served.set()
            async for _ in channel.frames():
                pass

        listener = Listener(access, serve)
        port = listener.listen("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        idle = []
        for _ in range(MOST_HANDSHAKES + 10):
            made = socket.create_connection(("127.0.0.1", port))
            made.setblocking(False)
            idle.append(made)
            await asyncio.sleep(0)
        for one in idle[:10]:
            with suppress(ConnectionError):
                async with asyncio.timeout(60):
                    assert await loop.sock_recv(one, 1) == b""
        link = await remote_source(f"127.0.0.1:{port}", access, 1).connect()
        await served.wait()
        await link.close()
        listener.close()
        for one in idle:
            one.close()

    asyncio.run(run())


def test_a_listener_that_is_closed_takes_no_connections_and_can_listen_again() -> None:
    async def run() -> None:
        async def serve(channel: Channel, peer: str) -> None:
            raise AssertionError("nobody has the token")

        listener = Listener(Access(b"a secret of both machines", None, None), serve)
        port = listener.listen("127.0.0.1", 0)
        listener.close()
        assert not listener.is_open
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert listener.listen("127.0.0.1", port) == port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        listener.close()

    asyncio.run(run())
