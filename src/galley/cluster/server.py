"""``galley replica``: engines that servers on other machines use.

The engines are supervised by the same client as a server's own, so a crash here is resumed here. Each
server that connects gets the description of the model and the keys of the cached blocks, then submits
requests as to an engine process. When its connection ends, its requests are dropped: it has others continue
them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from galley.cluster.channel import Channel, receive
from galley.cluster.remote import send_at_once
from galley.errors import GalleyError, SettingsError
from galley.links.access import Access
from galley.links.handshake import HANDSHAKE_SECONDS
from galley.rare_warnings import RareWarnings
from galley.service.client import EngineClient
from galley.service.frames import (
    Abort,
    AdapterLoaded,
    Alive,
    Blocks,
    FromEngine,
    Leaving,
    LoadAdapter,
    Ready,
    Submit,
    ToEngine,
    UnloadAdapter,
    bare,
    decode_to_engine,
    steps_of,
)
from galley.service.streams import OutputStream
from galley.service.watchdog import SIGN_OF_LIFE_SECONDS
from galley.types import Adapter, EngineRequest, Output, Timing

log = logging.getLogger("galley.cluster")

MOST_CONNECTIONS: Final = 64
"""Maximum servers that are connected at the same time."""

MOST_HANDSHAKES: Final = 64
"""Maximum connections that have not proved to have the token; each further one replaces the oldest."""

_FLUSH_POLL_SECONDS: Final = 0.02

_NEW_PART: Final = 1 / 16
"""Part of a new measurement in a mean over recent ones."""


class ReplicaServer:
    """Accepts servers and runs their requests. For use in one event loop.

    Attributes:
        prefill_seconds: mean time from a sequence's first step to its first token, of recent sequences.
    """

    def __init__(
        self, client: EngineClient, access: Access, contents: str, release: str = ""
    ) -> None:
        """Create it.

        Args:
            client: the engines, which are ready.
            access: the token and the certificates.
            contents: digest of the checkpoint's files.
            release: name of the release that the engines serve, if they have one.
        """
        self._client = client
        self._access = access
        self._contents = contents
        self._release = release
        self._server: asyncio.Server | None = None
        self._open = 0
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Connections that shake hands, the oldest first."""
        self._warnings = RareWarnings("galley.cluster")
        self.prefill_seconds = 0.0
        self._leaving = False
        self._callers: set[_Caller] = set()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections from now on; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        tls = self._access.as_replica
        seconds = None if tls is None else HANDSHAKE_SECONDS
        self._server = await asyncio.start_server(
            self._accept, host, port, ssl=tls, ssl_handshake_timeout=seconds
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def blocks_changed(self, blocks: Blocks) -> None:
        """Report a change of what the prefix cache holds to all servers."""
        for caller in self._callers:
            caller.send(blocks)

    async def leave(self, seconds: float) -> None:
        """Have the servers continue their requests elsewhere; wait for those that cannot be."""
        self._leaving = True
        for caller in self._callers:
            caller.send(Leaving())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._client.in_flight:  # noqa: ASYNC110 - aborts and results both count
                    await asyncio.sleep(_FLUSH_POLL_SECONDS)

    async def close(self) -> None:
        """Accept no more connections, and end those that there are."""
        if self._server is not None:
            self._server.close()
        for caller in list(self._callers):
            await caller.channel.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            channel = await self._greeted(reader, writer)
        except (SettingsError, OSError, msgspec.DecodeError) as error:
            self._warnings.add(f"{peer}: connection refused: {error or 'no answer in time'}")
            writer.transport.abort()
            return
        if self._open >= MOST_CONNECTIONS:
            log.warning("%s: more than %d connections", peer, MOST_CONNECTIONS)
            writer.transport.abort()
            return
        self._open += 1
        try:
            await self._serve(channel)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s: connection ended: %s", peer, error or "no answer in time")
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
        """Shake hands. Whoever has no token cannot keep those who have one from doing so.

        Raises:
            SettingsError: the other side has another token or version.
            OSError: the connection ended, or the other side did not answer in time.
        """
        if len(self._strangers) >= MOST_HANDSHAKES:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            send_at_once(writer)
            return await receive(reader, writer, self._access.token)
        finally:
            self._strangers.pop(writer, None)

    async def _serve(self, channel: Channel) -> None:
        caller = _Caller(channel, self._client, self._note)
        fleet = self._client.fleet
        while self._client.state != "ready":
            await fleet.change()
        caller.send(
            Ready(
                self._client.info,
                self._client.stats,
                sum(replica.seats for replica in fleet.replicas),
                self._contents,
                self._release,
            )
        )
        caller.send(Blocks(list(set().union(*(one.blocks for one in fleet.replicas))), []))
        if self._leaving:
            caller.send(Leaving())
        self._callers.add(caller)
        beating = asyncio.create_task(caller.beat())
        try:
            async for bodies in channel.frames():
                for body in bodies:
                    caller.take(decode_to_engine(body))
        finally:
            self._callers.discard(caller)
            beating.cancel()
            caller.drop_all()

    def _note(self, timing: Timing) -> None:
        prefill = timing.first_token - timing.queued
        self.prefill_seconds += (prefill - self.prefill_seconds) * _NEW_PART


class _Caller:
    """A server that is connected, and its requests."""

    def __init__(
        self, channel: Channel, client: EngineClient, note: Callable[[Timing], None]
    ) -> None:
        self.channel = channel
        self._note = note
        self._client = client
        self._streams: dict[str, OutputStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = 0
        self._outputs: list[Output] = []
        self._flushing = False

    def send(self, frame: FromEngine) -> None:
        """Queue a frame."""
        self.channel.send(bare(frame))

    def take(self, frame: ToEngine) -> None:
        """Act on a frame of the server."""
        self._seen += 1
        if isinstance(frame, Submit):
            self._submit(frame.request)
        elif isinstance(frame, Abort):
            for request_id in frame.request_ids:
                if stream := self._streams.pop(request_id, None):
                    stream.cancel()
            # Confirm the aborts, also where there is no work.
            self._flush_soon()
        elif isinstance(frame, LoadAdapter):
            self._run(self._load(frame.adapter))
        elif isinstance(frame, UnloadAdapter):
            self._client.unload_adapter(frame.adapter)

    async def beat(self) -> None:
        """Give signs of life while the engines work."""
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
            if self._client.state == "ready":
                self.send(Alive(0.0))

    def drop_all(self) -> None:
        """Drop the requests of a server that has gone."""
        for stream in self._streams.values():
            stream.cancel()
        for task in self._tasks:
            task.cancel()

    def _submit(self, request: EngineRequest) -> None:
        # Ids of several servers may be equal. The server has chosen the release.
        name = f"{id(self):x}-{self._seen}-{request.id}"
        unique = msgspec.structs.replace(request, id=name, release="")
        try:
            stream = self._client.submit(unique)
        except GalleyError as error:
            self._fail(request.id, error)
            return
        self._streams[request.id] = stream
        self._run(self._pass_on(request.id, stream))

    async def _pass_on(self, request_id: str, stream: OutputStream) -> None:
        try:
            async for output in stream:
                if self._streams.get(request_id) is not stream:
                    return
                if output.finish_reason is not None:
                    del self._streams[request_id]
                    if output.timing is not None:
                        self._note(output.timing)
                self._outputs.append(msgspec.structs.replace(output, request_id=request_id))
                self._flush_soon()
        except GalleyError as error:
            # Too much was unread; without an end, the server would wait for more.
            if self._streams.pop(request_id, None) is stream:
                self._fail(request_id, error)

    def _fail(self, request_id: str, error: GalleyError) -> None:
        self._outputs.append(Output(request_id=request_id, finish_reason="error", error=str(error)))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send the outputs after the other readers of the same step have had their turn."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        outputs, self._outputs = self._outputs, []
        for step in steps_of(outputs, self._client.stats, self._seen):
            self.send(step)

    async def _load(self, adapter: Adapter) -> None:
        error = None
        try:
            await self._client.load_adapter(adapter)
        except GalleyError as refusal:
            error = str(refusal)
        self.send(AdapterLoaded(adapter.digest, error))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
