"""Accepts the connections of a replica: whoever has no token cannot keep out those who have it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from galley.cluster.channel import Channel, receive
from galley.errors import SettingsError
from galley.links.access import Access
from galley.links.handshake import HANDSHAKE_SECONDS
from galley.links.sockets import listening
from galley.rare_warnings import RareWarnings

MOST_HANDSHAKES: Final = 64
"""Maximum connections that have not proved to have the token; each further one replaces the oldest."""

_PAUSE_SECONDS: Final = 0.05
"""Pause after a connection that could not be accepted."""


class Listener:
    """A listening socket, and the connections that shake hands. For use in one event loop.

    Unlike ``asyncio.start_server``, it also bounds the connections that have yet to begin TLS.

    Args:
        access: the token and the certificates.
        serve: serves the other side of a connection, whose address is the second argument.
    """

    def __init__(self, access: Access, serve: Callable[[Channel, str], Awaitable[None]]) -> None:
        self._access = access
        self._serve = serve
        self._warnings = RareWarnings("galley.cluster")
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Those that shake hands, the oldest first."""

    def listen(self, host: str, port: int) -> int:
        """Accept connections from now on; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        listener = listening(host, port)
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))
        return int(listener.getsockname()[1])

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self._accepting is not None

    def close(self) -> None:
        """Accept no more connections, and end those that shake hands."""
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        for one in list(self._strangers):
            one.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    raw, _ = await loop.sock_accept(listener)
                except OSError as error:  # such as no descriptor left, which passes
                    self._warnings.add(f"a connection was not accepted: {error}")
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                self._begin(raw)
                await asyncio.sleep(0)  # a flood of connections must not hold up everything else

    def _begin(self, raw: socket.socket) -> None:
        if len(self._strangers) >= MOST_HANDSHAKES:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._connected(raw))
        self._strangers[task] = None
        self._connections.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._connections.discard(task)

    async def _connected(self, raw: socket.socket) -> None:
        """Shake hands, and serve the other side."""
        peer = "an unknown address"
        try:
            peer = str(raw.getpeername())
            channel = await self._greeted(raw)
        except (SettingsError, OSError, msgspec.DecodeError) as error:
            self._warnings.add(f"{peer}: connection refused: {error or 'no answer in time'}")
            return
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._strangers.pop(task, None)
        try:
            await self._serve(channel, peer)
        finally:
            channel.abort()

    async def _greeted(self, raw: socket.socket) -> Channel:
        """Begin TLS, if there is any, and shake hands.

        Raises:
            SettingsError: the other side has another token or version.
            OSError: the connection ended, or the other side did not answer in time.
        """
        loop, tls = asyncio.get_running_loop(), self._access.as_replica
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # send each frame at once
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                raw,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
            )
        except BaseException:
            raw.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            return await receive(reader, writer, self._access.token)
        except BaseException:
            transport.abort()
            raise
