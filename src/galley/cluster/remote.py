"""Replicas on other machines, as a server reaches them: ``galley replica`` at the other end."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from galley.cluster.channel import Channel, greet
from galley.links.access import Access
from galley.links.handshake import BadFrame
from galley.service.frames import FromEngine, ToEngine, bare, decode_from_engine
from galley.service.links import ReplicaSource
from galley.settings.values import parsed_address

_CONNECT_SECONDS: Final = 10.0


class RemoteLink:
    """The connection to a replica elsewhere; see :class:`galley.service.replica.EngineLink`."""

    pid = None

    def __init__(self, channel: Channel) -> None:
        self.frames_sent = 0
        self._channel = channel

    def send(self, frame: ToEngine) -> None:
        """Queue a frame. If the connection has ended, the frame is dropped and :meth:`frames` ends."""
        self.frames_sent += 1
        self._channel.send(bare(frame))

    async def frames(self) -> AsyncIterator[list[FromEngine]]:
        """Yield the frames until the connection ends, each time all that have arrived."""
        async for bodies in self._channel.frames():
            try:
                yield [decode_from_engine(body) for body in bodies]
            except msgspec.DecodeError as error:
                raise BadFrame(f"a frame cannot be decoded: {error}") from error

    def kill(self) -> None:
        """Drop the connection; :meth:`frames` then ends."""
        self._channel.abort()

    async def close(self) -> int:
        """Close the connection; the replica drops the requests that it has from here."""
        await self._channel.close()
        return 0


def remote_source(
    address: str, access: Access, seats: int, *, setting: str = "replica"
) -> ReplicaSource:
    """Return the source of the replica at ``HOST:PORT``.

    Args:
        address: the address; also the replica's name.
        access: the token and the certificates.
        seats: sequences that it runs at the same time, before it has reported more.
        setting: the setting that names it.

    Raises:
        SettingsError: the address has another form.
    """
    host, port = parsed_address(address, setting)

    async def connect() -> RemoteLink:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=access.as_caller)
        send_at_once(writer)
        try:
            channel = await greet(reader, writer, access.token)
        except BaseException:
            writer.transport.abort()
            raise
        return RemoteLink(channel)

    return ReplicaSource(name=address, connect=connect, seats=seats, remote=True)


def send_at_once(writer: asyncio.StreamWriter) -> None:
    """Send each frame without waiting for more to fill a packet."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
